// argocd-lua SCRIPT reads one object as JSON, runs SCRIPT on it as Argo CD runs the scripts of a ConfigMap, and prints as JSON
// what the script returns: a health, the actions there are, or the object as an action changed it.
//
// As Argo CD does: the object is the global `obj`, a script has a second, and of Lua's libraries it has `package`, the basic
// functions and `table`, and `require("os")` with `time` and `date` alone. There is no `string`. A script that runs here runs there.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
	luajson "layeh.com/gopher-json"
)

const allowed = time.Second

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: argocd-lua SCRIPT <OBJECT")
		os.Exit(2)
	}
	if err := tell(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "argocd-lua:", err)
		os.Exit(1)
	}
}

func tell(script string, in io.Reader, out io.Writer) error {
	var object map[string]any
	if err := json.NewDecoder(in).Decode(&object); err != nil {
		return fmt.Errorf("the object: %w", err)
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	if err := open(state); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), allowed)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", luajson.DecodeValue(state, object))
	if err := state.DoFile(script); err != nil {
		return err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return errors.New("a script returns a table, this one returned " + state.Get(-1).Type().String())
	}
	text, err := luajson.Encode(table)
	if err != nil {
		return err
	}
	var returned any
	if err := json.Unmarshal(text, &returned); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(mended(returned, object))
}

func open(state *lua.LState) error {
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		call := lua.P{Fn: state.NewFunction(library.open), Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			return err
		}
	}
	// Those two of Lua's own, taken from a state that no script sees: with the whole library a script could read files.
	whole := lua.NewState()
	state.PreloadModule(lua.OsLibName, func(state *lua.LState) int {
		safe := state.NewTable()
		for _, name := range []string{"time", "date"} {
			function := whole.GetField(whole.GetGlobal(lua.OsLibName), name).(*lua.LFunction)
			safe.RawSetString(name, state.NewFunction(function.GFunction))
		}
		state.Push(safe)
		return 1
	})
	return nil
}

// Lua has one kind of table, and an empty one comes back as a list. What was an object before is that object again.
func mended(after, before any) any {
	switch after := after.(type) {
	case []any:
		if object, ok := before.(map[string]any); ok && len(after) == 0 {
			return object
		}
		if list, ok := before.([]any); ok {
			for i := range min(len(after), len(list)) {
				after[i] = mended(after[i], list[i])
			}
		}
	case map[string]any:
		if object, ok := before.(map[string]any); ok {
			for key := range after {
				after[key] = mended(after[key], object[key])
			}
		}
	}
	return after
}
