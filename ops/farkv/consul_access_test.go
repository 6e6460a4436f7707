package main

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/farkv/farkv/node/cluster/consul/consultest"
)

// TestConsulAccess runs testdata/consul-access over a Consul agent with access control on. The
// tokens there have the rules that 'farkv help consul' prints, all of them ($ALL) or all but one
// ($NO_KEY and so on).
func TestConsulAccess(t *testing.T) {
	const management = "0b1d7a4e-2b8f-4d7c-9a53-1f6f6b1f2c11"
	t.Setenv("CONSUL_HTTP_TOKEN", management)
	agent := consultest.Start(t, map[string]any{"acl": map[string]any{"enabled": true, "default_policy": "deny",
		"tokens": map[string]any{"initial_management": management, "agent": management}}})
	rules := documentedRules(t)
	tokens := map[string]string{"ALL": newToken(t, agent.Address, "ALL", rules)}
	for i, rule := range rules {
		kind, _, _ := strings.Cut(strings.TrimSpace(rule), "_")
		name := "NO_" + strings.ToUpper(kind)
		tokens[name] = newToken(t, agent.Address, name, append(append([]string{}, rules[:i]...), rules[i+1:]...))
	}
	p := scripts("testdata/consul-access")
	setup := p.Setup
	p.Setup = func(env *testscript.Env) error {
		env.Setenv("CONSUL", agent.Address)
		for name, token := range tokens {
			env.Setenv(name, token)
		}
		return setup(env)
	}
	testscript.Run(t, p)
}

// documentedRules are the lines of 'farkv help consul' that the grep there finds.
func documentedRules(t *testing.T) []string {
	t.Helper()
	status, stdout, _ := run(context.Background(), "help", "consul")
	grep := regexp.MustCompile(`grep '(.*)'`).FindStringSubmatch(stdout)
	if status != 0 || grep == nil {
		t.Fatalf("exit status %d, and no grep in the help", status)
	}
	rules := regexp.MustCompile("(?m)"+grep[1]+".*$").FindAllString(stdout, -1)
	if len(rules) < 2 {
		t.Fatalf("rules: %q", rules)
	}
	return rules
}

// newToken makes a token that has these rules, with those of the token in the environment.
func newToken(t *testing.T, address, name string, rules []string) string {
	t.Helper()
	config := api.DefaultConfig()
	config.Address = address
	client, err := api.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	defer config.Transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	own := (&api.WriteOptions{}).WithContext(ctx)
	policy := &api.ACLPolicy{Name: name, Rules: strings.Join(rules, "\n")}
	for { // a leader takes a moment until its access control works
		made, _, err := client.ACL().PolicyCreate(policy, own)
		if err == nil {
			policy = made
			break
		}
		if ctx.Err() != nil || !strings.Contains(err.Error(), "ACL") {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	token, _, err := client.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{ID: policy.ID}}}, own)
	if err != nil {
		t.Fatal(err)
	}
	return token.SecretID
}
