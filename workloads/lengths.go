package workloads

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// lengths draws the sizes of fields, and of scans. It is immutable.
type lengths struct {
	kind     string // constant, uniform, zipfian, histogram
	min, max int
	zipf     Zipfian
	blocks   []int64 // of a histogram: the cumulated weights of sizes min, 2*min ...
}

func newLengths(kind string, least, most int, theta float64) lengths {
	l := lengths{kind: kind, min: least, max: most}
	if kind == "zipfian" {
		l.zipf = NewZipfian(int64(most-least+1), theta)
	}
	return l
}

func (l *lengths) next(r *rand.Rand) int {
	switch l.kind {
	case "uniform":
		return l.min + r.IntN(l.max-l.min+1)
	case "zipfian":
		return l.min + int(l.zipf.Next(r))
	case "histogram":
		return l.at(r.Int64N(l.weight()))
	}
	return l.max
}

// at returns the size at a place of a histogram, from 0 to less than its weight.
func (l *lengths) at(place int64) int {
	i, _ := slices.BinarySearch(l.blocks, place+1)
	return (i + 1) * l.min
}

// of returns the size of a histogram that follows from a hash.
func (l *lengths) of(hash uint64) int { return l.at(int64(hash % uint64(l.weight()))) }

func (l *lengths) weight() int64 { return l.blocks[len(l.blocks)-1] }

// maxBlocks bounds the lines that a histogram file may describe.
const maxBlocks = 1 << 20

// parseLengths reads YCSB's histogram of field lengths: a line "BlockSize<tab>bytes", then lines
// "block<tab>weight"; a field of block i has (i+1) blocks.
func parseLengths(text string) (lengths, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	name, size, err := histogramLine(lines[0])
	if err != nil || name != "BlockSize" || size < 1 || size > maxField {
		return lengths{}, fmt.Errorf("line 1 is not BlockSize<tab>bytes: %q", lines[0])
	}
	var weights []int64
	for i, line := range lines[1:] {
		name, weight, err := histogramLine(line)
		block, err2 := strconv.ParseInt(name, 10, 32)
		if err != nil || err2 != nil || block < 0 || weight < 0 || block >= maxBlocks || (block+1)*size > maxField {
			return lengths{}, fmt.Errorf("line %d is not block<tab>weight: %q", i+2, line)
		}
		for int64(len(weights)) <= block {
			weights = append(weights, 0)
		}
		weights[block] += weight
	}
	sum := int64(0)
	for i, w := range weights {
		sum += w
		if sum < 0 {
			return lengths{}, fmt.Errorf("the weights overflow")
		}
		weights[i] = sum
	}
	if sum == 0 {
		return lengths{}, fmt.Errorf("no block has any weight")
	}
	return lengths{kind: "histogram", min: int(size), max: len(weights) * int(size), blocks: weights}, nil
}

func histogramLine(line string) (name string, value int64, err error) {
	name, number, _ := strings.Cut(strings.TrimSpace(line), "\t")
	value, err = strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	return name, value, err
}
