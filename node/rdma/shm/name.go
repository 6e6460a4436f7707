package shm

import "fmt"

// longest is the most bytes that a pool's name may have: with the prefix it has to be a file name.
const longest = 200

// CheckName tells whether name may name a pool: letters, digits, '.', '_' and '-', the first no '.' and no '-'. The
// error wraps ErrName.
func CheckName(name string) error {
	ok := len(name) > 0 && len(name) <= longest && name[0] != '.' && name[0] != '-'
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			c == '.' || c == '_' || c == '-')
	}
	if !ok {
		return fmt.Errorf("%w %q: want 1 to %d letters, digits, '.', '_' or '-', beginning with none of '.' and '-'",
			ErrName, name, longest)
	}
	return nil
}
