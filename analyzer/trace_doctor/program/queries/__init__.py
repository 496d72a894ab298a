"""Questions to a program: where it trains, what a call is given, what feeds its loop."""
