"""One stream as a pure state machine: state, text, credit and outbox. No socket, no clock, no listener."""
