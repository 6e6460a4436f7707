package consul

// Rules are the rules of Consul's access control that a token needs for all that farkv does: to
// write the pools' records and registries and the registrations, to list what is registered, which
// Consul shows only along with its nodes, and to read the agent's version for 'farkv doctor'.
const Rules = `key_prefix "farkv/" { policy = "write" }
service_prefix "farkv-" { policy = "write" }
node_prefix "" { policy = "read" }
agent_prefix "" { policy = "read" }`
