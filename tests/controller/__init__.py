"""Tests: controller."""
