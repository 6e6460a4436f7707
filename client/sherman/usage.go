package sherman

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node/rdma"
)

// survey reads how much of a pool was handed out.
func survey(f rdma.Fabric, what string) (*layout, rtx.Survey, error) {
	ep, l, _, err := client.Look(f, what, readLayout)
	if err != nil {
		return nil, rtx.Survey{}, err
	}
	defer ep.Close()
	s, err := l.rtx.Survey(ep, l.Timeout)
	if err != nil {
		return nil, s, fmt.Errorf("%s: %w", what, err)
	}
	return l, s, nil
}

// Usage tells what the memory of a pool is used for. It may run while clients do. What was handed out to a client counts
// as used, also where the client has it free.
func Usage(f rdma.Fabric) ([]client.Use, error) {
	l, s, err := survey(f, "read the use of memory")
	if err != nil {
		return nil, err
	}
	sizes := l.sizes()
	uses := []client.Use{{Name: "metadata", Count: s.Objects, Bytes: s.Objects * rtx.MetaBytes}}
	handed := uint64(0)
	for i, chunks := range s.Chunks {
		name := fmt.Sprintf("chunks of values up to %d bytes, with their keys", sizes[i])
		if sizes[i] == l.format.NodeBytes {
			name = "chunks of nodes"
		}
		uses = append(uses, client.Use{Name: name, Count: chunks, Bytes: chunks * uint64(l.Chunk)})
		handed += chunks
	}
	free := s.MostChunks - handed
	return append(uses, client.Use{Name: "chunks that were never used", Count: free, Bytes: free * uint64(l.Chunk)}), nil
}

// Fill returns how much of a pool's memory was handed out to clients. Behind its end INSERTs still find what is free in
// what was handed out.
func Fill(f rdma.Fabric) ([]client.Fill, error) {
	_, s, err := survey(f, "see how full the pool is")
	if err != nil {
		return nil, err
	}
	chunks := client.Fill{Of: "chunks", All: s.MostChunks}
	for _, n := range s.Chunks {
		chunks.Used += n
	}
	return []client.Fill{{Of: "objects", Used: s.Objects, All: s.MostObjects}, chunks}, nil
}
