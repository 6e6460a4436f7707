package fusee

func (c *Client) resync(moved func(int) bool) error { return nil }
