"""The pages of a site: functions of what is known of it, the time and a time zone. They read without a script."""
