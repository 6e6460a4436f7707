package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

// redisServer takes the place of redis-server: as much of Redis's protocol as upstream's driver
// speaks with hashes.
func redisServer() {
	bind := flag.String("bind", "", "")
	port := flag.String("port", "", "")
	dir := flag.String("dir", "", "")
	for _, name := range []string{"save", "appendonly", "daemonize", "loglevel"} {
		flag.String(name, "", "")
	}
	flag.Parse()
	must(os.Stat(*dir))
	l := must(net.Listen("tcp", net.JoinHostPort(*bind, *port)))
	s := &redisData{hashes: map[string]map[string]string{}}
	for {
		go s.serve(must(l.Accept()))
	}
}

type redisData struct {
	mu     sync.Mutex
	hashes map[string]map[string]string
}

func (s *redisData) serve(c net.Conn) {
	defer c.Close()
	r, w := bufio.NewReader(c), bufio.NewWriter(c)
	for {
		words, err := readCommand(r)
		if err != nil {
			return
		}
		s.answer(w, words)
		if r.Buffered() == 0 && w.Flush() != nil {
			return
		}
	}
}

func readCommand(r *bufio.Reader) ([]string, error) {
	n, err := readLength(r, '*')
	words := make([]string, n)
	for i := range words {
		size, e := readLength(r, '$')
		b := make([]byte, size+2)
		if _, err = io.ReadFull(r, b); e != nil || err != nil {
			return nil, fmt.Errorf("%v, %v", e, err)
		}
		words[i] = string(b[:size])
	}
	return words, err
}

func readLength(r *bufio.Reader, mark byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil || line[0] != mark {
		return 0, fmt.Errorf("%q: %v", line, err)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

func (s *redisData) answer(w io.Writer, words []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch strings.ToUpper(words[0]) {
	case "PING":
		fmt.Fprint(w, "+PONG\r\n")
	case "HSET":
		h := s.hashes[words[1]]
		if h == nil {
			h = map[string]string{}
			s.hashes[words[1]] = h
		}
		for i := 2; i+1 < len(words); i += 2 {
			h[words[i]] = words[i+1]
		}
		fmt.Fprintf(w, ":%d\r\n", len(words)/2-1)
	case "HMGET":
		fmt.Fprintf(w, "*%d\r\n", len(words)-2)
		for _, name := range words[2:] {
			v := s.hashes[words[1]][name]
			fmt.Fprintf(w, "$%d\r\n%s\r\n", len(v), v)
		}
	default:
		fmt.Fprintf(w, "-ERR unknown command '%s'\r\n", words[0])
	}
}
