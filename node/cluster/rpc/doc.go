// Package rpc has requests and their answers over mailboxes (see rdma.Mailbox), for workers that
// serve each other and for clients that ask them:
//
//	p, err := rpc.Open(ep, rpc.Options{Box: rdma.BoxOptions{Node: 0, Number: 1}})
//	for {
//		r, err := p.Next(time.Millisecond) // a request, or nil when something else happened
//		...                                // post verbs, and answer when they are complete
//		r.Answer(0, value)
//	}
//
// A handler is a part of its worker's loop. It uses the worker's endpoint, and may have as many
// requests in progress as its mailbox has buffers. A request in progress keeps its buffer until it
// is answered or dropped.
//
// A request is repeated only if the mailbox refused it for want of a buffer: then it was not
// delivered. So no request runs twice. A call that ends without an answer either did not run, or
// ends in ErrUncertain: it may have run, or may still run.
//
// There is no order between messages, and no connection. A peer that has closed its mailbox refuses
// requests; one that hangs or has crashed is noticed by its missing answers, in the time of each
// call. What its handler had done by then is for the store to find out.
package rpc
