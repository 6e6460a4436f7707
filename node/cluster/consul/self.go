package consul

// Self returns the agent's version and the address of its servers' leader; "": there is none, and
// nothing can be changed. Errors wrap membership.ErrUnreachable.
func (a *Agent) Self() (version, leader string, err error) {
	ctx, cancel := a.bound()
	defer cancel()
	var self struct{ Config struct{ Version string } }
	if _, err := a.client.Raw().Query("/v1/agent/self", &self, consistent(ctx)); err != nil {
		return "", "", a.failed(err, "ask for its version")
	}
	if _, err := a.client.Raw().Query("/v1/status/leader", &leader, consistent(ctx)); err != nil {
		return "", "", a.failed(err, "ask for the leader")
	}
	return self.Config.Version, leader, nil
}
