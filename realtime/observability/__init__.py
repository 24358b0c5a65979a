"""What can be seen from outside: metrics, traces, the log and the listing. All watch, and change nothing."""
