package command

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/farkv/farkv/client/stores"
)

// option is the flag of an option that stores have. It sets values.
type option struct {
	*stores.Option
	values stores.Values
	text   string
}

func (o *option) String() string { return o.text }

// Type is what the help calls a value.
func (o *option) Type() string {
	if o.Parts != nil {
		return "name=value,..."
	}
	return o.Option.Type.String()
}

func (o *option) Set(text string) error {
	o.text = text
	return o.values.Read(o.Option, text)
}

// Options adds a flag for each option of any store that is chosen at one of the times, and returns
// those that are set, once the flags are parsed. The command's own defaults count more than the
// stores'.
func Options(f *pflag.FlagSet, defaults map[string]string, when ...stores.When) stores.Values {
	values := stores.Values{}
	for _, o := range stores.Offers() {
		if o.Parts == nil && !slices.Contains(when, o.When) {
			continue
		}
		otherwise := o.Otherwise
		if own := defaults[o.Name]; own != "" {
			otherwise = own
		}
		text := o.Of() + o.Help()
		if otherwise != "" && o.Option.Type != stores.Bool {
			text = fmt.Sprintf("%s (default %s)", text, otherwise)
		}
		flag := f.VarPF(&option{Option: &o.Option, values: values}, o.Name, "", text)
		if o.Parts == nil && o.Option.Type == stores.Bool {
			flag.NoOptDefVal = "true"
		}
	}
	return values
}
