package rdmatest_test

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// lax is a fabric with a control of the view that is broken where its functions are set.
type lax struct {
	*sim.Sim
	fence   func(epoch uint64) error
	advance func(from, to rdma.State) (bool, error)
	member  func(epoch uint64, node int, from, to rdma.Member) (bool, error)
	view    func() rdma.View
	expel   func(epoch uint64, node int) error
	master  func(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error)
	renew   func(r rdma.Role, lease time.Duration) (rdma.Role, bool, error)
	resign  func(r rdma.Role)
	forget  func(c rdma.Client) error
	config  func() (rdma.Config, error)
	swap    func(r rdma.Role, version uint64, data []byte) (bool, error)
	await   func(version uint64, within time.Duration) (rdma.Config, error)
}

func (l *lax) Fence(epoch uint64) error                  { return l.fence(epoch) }
func (l *lax) Advance(from, to rdma.State) (bool, error) { return l.advance(from, to) }
func (l *lax) View() rdma.View                           { return l.view() }
func (l *lax) Expel(epoch uint64, node int) error        { return l.expel(epoch, node) }
func (l *lax) Resign(r rdma.Role)                        { l.resign(r) }
func (l *lax) Forget(c rdma.Client) error                { return l.forget(c) }
func (l *lax) Config() (rdma.Config, error)              { return l.config() }
func (l *lax) SetMember(epoch uint64, node int, from, to rdma.Member) (bool, error) {
	return l.member(epoch, node, from, to)
}

func (l *lax) TryMaster(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error) {
	return l.master(owner, lease)
}

func (l *lax) Renew(r rdma.Role, lease time.Duration) (rdma.Role, bool, error) {
	return l.renew(r, lease)
}

func (l *lax) SwapConfig(r rdma.Role, version uint64, data []byte) (bool, error) {
	return l.swap(r, version, data)
}

func (l *lax) AwaitConfig(version uint64, within time.Duration) (rdma.Config, error) {
	return l.await(version, within)
}

// with breaks something of each fabric.
func with(change func(l *lax)) func(s *sim.Sim) rdma.Fabric {
	return func(s *sim.Sim) rdma.Fabric {
		l := &lax{
			s, s.Fence, s.Advance, s.SetMember, s.View, s.Expel, s.TryMaster, s.Renew, s.Resign, s.Forget,
			s.Config, s.SwapConfig, s.AwaitConfig,
		}
		change(l)
		return l
	}
}

// lateFence makes Fence refuse what is posted later, but not stop what is in flight.
func lateFence() rule {
	fenced, joined := uint64(0), map[rdma.ClientID]uint64{}
	return rule{
		broken: "Fence stops what is in flight", seen: []string{"Fence"},
		worker: saboteur{
			post: func(s *saboteur, b *rdma.Batch) error {
				if joined[s.Endpoint.Client()] < fenced {
					return rdma.ErrStale
				}
				return s.Endpoint.Post(b)
			},
			join: func(s *saboteur) (rdma.View, error) {
				v, err := s.Endpoint.Join()
				joined[s.Endpoint.Client()] = v.Epoch
				return v, err
			},
		},
		fabric: with(func(l *lax) {
			fenced = 0
			clear(joined)
			l.fence = func(epoch uint64) error { fenced = epoch; return nil }
		}),
	}
}

func viewRules() []rule {
	return []rule{
		lateFence(),
		{broken: "Fence fences", seen: []string{"Fence", "FenceAndOpen"},
			fabric: with(func(l *lax) { l.fence = func(uint64) error { return nil } })},
		{broken: "Fence spares workers that have joined", seen: []string{"FenceOfJoined"},
			fabric: with(func(l *lax) { l.fence = func(epoch uint64) error { return l.Sim.Fence(epoch + 1) } })},
		{broken: "no worker joins unasked", seen: []string{"Fence", "FenceAndOpen"},
			worker: saboteur{post: func(s *saboteur, b *rdma.Batch) error {
				err := s.Endpoint.Post(b)
				if errors.Is(err, rdma.ErrStale) {
					_, err = s.Endpoint.Join()
					err = errors.Join(err, s.Endpoint.Post(b))
				}
				return err
			}}},
		{broken: "a worker that joins may go on", seen: []string{"Fence"},
			worker: saboteur{join: func(s *saboteur) (rdma.View, error) { return rdma.View{Epoch: 1}, nil }}},
		{broken: "a client that was fenced off does not join", seen: []string{"Join"},
			worker: saboteur{join: func(s *saboteur) (rdma.View, error) {
				v, err := s.Endpoint.Join()
				if errors.Is(err, rdma.ErrRevoked) {
					err = nil
				}
				return v, err
			}}},
		{broken: "one of many advances", seen: []string{"Advance"}, fabric: with(func(l *lax) {
			l.advance = func(from, to rdma.State) (bool, error) {
				_, err := l.Sim.Advance(from, to)
				return true, err
			}
		})},
		{broken: "epochs do not go back", seen: []string{"Advance"}, fabric: with(func(l *lax) {
			l.advance = func(from, to rdma.State) (bool, error) {
				ok, err := l.Sim.Advance(from, to)
				if errors.Is(err, rdma.ErrAccess) {
					return true, nil
				}
				return ok, err
			}
		})},
		{broken: "a member's state is compared", seen: []string{"Members"}, fabric: with(func(l *lax) {
			l.member = func(epoch uint64, node int, _, to rdma.Member) (bool, error) {
				if node >= l.Nodes() {
					return false, rdma.ErrAccess
				}
				return l.Sim.SetMember(epoch, node, l.Sim.View().Members[node], to)
			}
		})},
		{broken: "members change in the epoch that was meant", seen: []string{"Members"}, fabric: with(func(l *lax) {
			l.member = func(_ uint64, node int, from, to rdma.Member) (bool, error) {
				return l.Sim.SetMember(l.Sim.View().Epoch, node, from, to)
			}
		})},
		{broken: "views are of one moment", seen: []string{"Views"}, worker: staleJoin()},
		{broken: "Expel expels", seen: []string{"Expel"},
			fabric: with(func(l *lax) { l.expel = func(uint64, int) error { return nil } })},
	}
}

// staleJoin joins the epoch that is, with the members that were.
func staleJoin() saboteur {
	var last []rdma.Member
	return saboteur{join: func(s *saboteur) (rdma.View, error) {
		v, err := s.Endpoint.Join()
		if v.Epoch > 1 {
			last, v.Members = v.Members, last
		}
		return v, err
	}}
}

func masterRules() []rule {
	return []rule{
		{broken: "there is one master", seen: []string{"Master", "Renew"}, fabric: with(func(l *lax) {
			l.master = func(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error) {
				if r, ok, err := l.Sim.TryMaster(owner, lease); ok || err != nil || r.Owner == owner {
					return r, ok, err
				}
				return rdma.Role{Owner: owner, Epoch: 1, Until: l.Now() + lease}, true, nil
			}
		})},
		{broken: "epochs have the order of tenures", seen: []string{"Master", "Renew"}, fabric: with(func(l *lax) {
			n := uint64(1000)
			l.master = func(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error) {
				r, ok, err := l.Sim.TryMaster(owner, lease)
				if ok {
					n--
					r.Epoch = n
				}
				return r, ok, err
			}
		})},
		{broken: "a lost master is fenced off", seen: []string{"LostMaster"}, fabric: with(func(l *lax) {
			last := rdma.Role{}
			l.master = func(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error) {
				if l.Now() >= last.Until {
					l.Sim.Resign(last)
				}
				r, ok, err := l.Sim.TryMaster(owner, lease)
				if ok {
					last = r
				}
				return r, ok, err
			}
		})},
		{broken: "Resign ends a tenure", seen: []string{"Renew", "LostMaster"},
			fabric: with(func(l *lax) { l.resign = func(rdma.Role) {} })},
		{broken: "Renew prolongs", seen: []string{"Renew"}, fabric: with(func(l *lax) {
			l.renew = func(r rdma.Role, _ time.Duration) (rdma.Role, bool, error) { return r, true, nil }
		})},
		{broken: "clients are forgotten", seen: []string{"Forget"},
			fabric: with(func(l *lax) { l.forget = func(rdma.Client) error { return nil } })},
		{broken: "a client is forgotten, not its successor", seen: []string{"Forget"}, fabric: with(func(l *lax) {
			l.forget = func(c rdma.Client) error {
				for _, is := range l.Clients() {
					if is.ID == c.ID {
						c = is
					}
				}
				return l.Sim.Forget(c)
			}
		})},
	}
}

func configRules() []rule {
	return []rule{
		{broken: "a configuration's version is compared", seen: []string{"Config", "Configs"},
			fabric: with(func(l *lax) {
				l.swap = func(r rdma.Role, version uint64, data []byte) (bool, error) {
					c, _ := l.Sim.Config()
					return l.Sim.SwapConfig(r, c.Version, data)
				}
			})},
		{broken: "a configuration is whole", seen: []string{"Configs"}, fabric: with(func(l *lax) {
			var last []byte
			l.config = func() (rdma.Config, error) {
				c, err := l.Sim.Config()
				last, c.Data = c.Data, append(c.Data[:len(c.Data)/2:len(c.Data)/2],
					last[min(len(last), len(c.Data)/2):]...)
				return c, err
			}
		})},
		{broken: "a configuration's memory is the caller's", seen: []string{"Config"}, fabric: with(func(l *lax) {
			var last rdma.Config
			l.config = func() (rdma.Config, error) {
				if c, err := l.Sim.Config(); c.Version != last.Version || err != nil {
					last = c
				}
				return last, nil
			}
		})},
		{broken: "a deposed master replaces nothing", seen: []string{"Deposed"}, fabric: with(func(l *lax) {
			epoch := uint64(0)
			l.master = func(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error) {
				r, ok, err := l.Sim.TryMaster(owner, lease)
				if ok {
					epoch = r.Epoch
				}
				return r, ok, err
			}
			l.swap = func(r rdma.Role, version uint64, data []byte) (bool, error) {
				r.Epoch = epoch
				return l.Sim.SwapConfig(r, version, data)
			}
		})},
		{broken: "a watch sees what changes", seen: []string{"AwaitConfig"}, fabric: with(func(l *lax) {
			l.await = func(version uint64, within time.Duration) (rdma.Config, error) {
				if c, err := l.Sim.Config(); version == 0 || err != nil {
					return c, err
				}
				return l.Sim.AwaitConfig(version+1, within)
			}
		})},
		{broken: "a watch waits", seen: []string{"AwaitConfig"}, fabric: with(func(l *lax) {
			l.await = func(uint64, time.Duration) (rdma.Config, error) { return l.Sim.Config() }
		})},
	}
}
