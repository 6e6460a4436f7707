module github.com/farkv/farkv

go 1.25.0
