// Package rpc is requests and their answers over mailboxes (see rdma.Mailbox), for workers that
// serve each other and for clients that ask them:
//
//	p, err := rpc.Open(ep, rpc.Options{Box: rdma.BoxOptions{Node: 0, Number: 1}})
//	for {
//		r, err := p.Next(time.Millisecond) // a request, or nil when something else happened
//		...                                // begin it: post verbs, and answer when they are complete
//		r.Answer(0, value)
//	}
//
// A handler is a part of its worker's loop: it has the worker's endpoint, and as many requests at a
// time as its mailbox has buffers. A request that is begun keeps its buffer until it is answered or
// dropped.
//
// A request is sent again only while the mailbox that it goes to refuses it, for want of a buffer:
// then it was not delivered. So none runs twice. One that ends in any other way than by an answer
// either did not run, or ends in ErrUncertain: it may have run, or may run yet.
package rpc
