package client

// MostDismissed bounds the workers that leave at a time without anybody who waits for them.
const MostDismissed = mostDismissed
