package consul

// Rules are the rules of Consul's access control that a token needs for everything farkv does: the
// pools' records and boards, the registrations, the list of those that are registered, which Consul
// shows only with their nodes, and the agent's version, which 'farkv doctor' asks for.
const Rules = `key_prefix "farkv/" { policy = "write" }
service_prefix "farkv-" { policy = "write" }
node_prefix "" { policy = "read" }
agent_prefix "" { policy = "read" }`
