// Reads the board of docs/grafana/ by the types of Grafana's own SDK. A field that Grafana does not
// know, one that is missing, or a value of another kind is an error. It needs Go, so no test runs
// it:
//
//	cd tests/board && go run . ../../docs/grafana/dlock.json
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// The SDK returns a list of errors, which is never nil, but empty if there are none.
func must(what string, err error) {
	if err != nil && err.Error() != "" {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func main() {
	plugins.RegisterDefaultPlugins()
	raw, err := os.ReadFile(os.Args[1])
	must("the file", err)
	var strict, board dashboard.Dashboard
	must("the fields", strict.UnmarshalJSONStrict(raw))
	must("the board", json.Unmarshal(raw, &board))
	must("the values", board.Validate())
	rows, panels, queries := 0, 0, 0
	for _, one := range board.Panels {
		if one.Panel == nil {
			rows++
			continue
		}
		panels++
		queries += len(one.Panel.Targets)
	}
	fmt.Printf("%d rows, %d panels, %d queries\n", rows, panels, queries)
}
