"""The demo of a day: a training job on a simulated GPU follows a real grid."""
