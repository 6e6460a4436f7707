// Package digest makes the indexes of a Rowan-KV server name what other servers have appended to
// its logs (section 4.3), and finds out which segments with such records are committed (section
// 4.4).
//
// Backups take no part in a write: a record lands in their memory without a task of theirs, and is
// digested later. What is digested is a GET's business only when the server becomes the primary.
// The control task owns a Digester and a CommitVers; see package failover.
package digest
