// Command extender-load measures a scheduler extender from both sides: it stands in for the API server of a large
// cluster, which the extender follows, and for kube-scheduler, which asks the extender. It prints the URL of its API
// server, then reads one task a line from standard input and writes one result a line, all as JSON; scripts/benchmark
// starts the extender, gives the tasks and judges the results.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// Task is one thing to measure.
type Task struct {
	// Do is "ready", "filter", "prioritize" or "bind"; Extender is the URL to ask.
	Do, Extender string
	// Limits of the pod's only container; Calls is how often to ask, after Warm calls that do not count.
	Limits      map[string]string
	Calls, Warm int
	// Containers is how many containers ask for one core or two, otherwise in every call; Limits says nothing then.
	Containers int
	// Candidates is how many nodes to ask for; 0 is all.
	Candidates int
}

// Result has the duration of every call in milliseconds: of the extender until its answer has arrived, of decoding it,
// and of the API server alone where it is called too; of /livez, asked meanwhile. Judged is for how many nodes each
// answer has a verdict. Fitting is how many nodes the last filter left, Bytes the size of its answer.
type Result struct {
	Milliseconds, Decoding, Alone []float64
	Livez                         []float64
	Judged                        []int
	Fitting, Bytes                int
	Writes                        int64
}

func main() {
	nodes := flag.Int("nodes", 5000, "nodes of the cluster")
	pods := flag.Int("pods", 20000, "pods, all bound, with one device each")
	different := flag.Bool("different", false, "no two nodes are alike: their pods have cores without any order")
	flag.Parse()
	if err := run(newCluster(*nodes, *pods, *different), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "extender-load:", err)
		os.Exit(1)
	}
}

func run(cluster *Cluster, in io.Reader, out io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(listener, cluster) }()
	encoder := json.NewEncoder(out)
	cluster.url = "http://" + listener.Addr().String()
	if err := encoder.Encode(map[string]string{"Server": cluster.url}); err != nil {
		return err
	}
	client := &http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var task Task
		if err := json.Unmarshal(lines.Bytes(), &task); err != nil {
			return fmt.Errorf("cannot read the task: %w", err)
		}
		result, err := do(cluster, client, task)
		if err != nil {
			return fmt.Errorf("%s: %w", task.Do, err)
		}
		if err := encoder.Encode(result); err != nil {
			return err
		}
	}
	return lines.Err()
}

func do(cluster *Cluster, client *http.Client, task Task) (Result, error) {
	switch task.Do {
	case "ready":
		return ready(cluster, client, task)
	case "filter", "prioritize":
		return ask(cluster, client, task)
	case "bind":
		return bind(cluster, client, task)
	}
	return Result{}, fmt.Errorf("no such task")
}

// ready waits until the extender answers for all nodes and writes nothing any more.
func ready(cluster *Cluster, client *http.Client, task Task) (Result, error) {
	started := time.Now()
	task.Do, task.Limits, task.Calls = "filter", map[string]string{core: "1"}, 1
	last := int64(-1)
	var result Result
	var err error
	for time.Since(started) < 3*time.Minute {
		result, err = ask(cluster, client, task)
		writes := cluster.writes.Load()
		if err == nil && result.Fitting == len(cluster.names) && writes == last {
			result.Milliseconds, result.Writes = []float64{milliseconds(started)}, writes
			return result, nil
		}
		last = writes
		time.Sleep(2 * time.Second)
	}
	return Result{}, fmt.Errorf("not in time: %d of %d nodes, %d writes, %w", result.Fitting, len(cluster.names), last, err)
}

func ask(cluster *Cluster, client *http.Client, task Task) (Result, error) {
	names := cluster.names
	if task.Candidates > 0 {
		names = names[:task.Candidates]
	}
	var result Result
	var body []byte
	var err error
	health := func() ([]float64, error) { return nil, nil }
	if task.Containers > 0 {
		health = watchHealth(client, task.Extender)
	}
	for call := range task.Warm + task.Calls {
		if call == 0 || task.Containers > 0 {
			asked := pod("asked", "", limits(task, call), nil)
			if task.Containers > 0 {
				// One alone would soon have used up its share of the extender's time.
				asked.Metadata.Namespace = fmt.Sprintf("%s-%d", namespace, call)
			}
			args := map[string]any{"Pod": asked, "Nodes": nil, "NodeNames": names}
			if body, err = json.Marshal(args); err != nil {
				return Result{}, err
			}
		}
		begun := time.Now()
		answer, err := post(client, task.Extender+"/"+task.Do, body)
		if err != nil {
			return Result{}, err
		}
		answered := milliseconds(begun)
		var filtered struct {
			NodeNames                               []string
			FailedNodes, FailedAndUnresolvableNodes map[string]string
		}
		var scores []struct {
			Host  string
			Score int64
		}
		if task.Do == "filter" {
			err = json.Unmarshal(answer, &filtered)
		} else {
			err = json.Unmarshal(answer, &scores)
		}
		if err != nil {
			return Result{}, err
		}
		if call >= task.Warm {
			result.Milliseconds = append(result.Milliseconds, answered)
			result.Decoding = append(result.Decoding, milliseconds(begun)-answered)
			judged := len(filtered.NodeNames) + len(filtered.FailedAndUnresolvableNodes)
			for _, text := range filtered.FailedNodes {
				if text != unjudged {
					judged++
				}
			}
			result.Judged = append(result.Judged, judged)
		}
		result.Fitting, result.Bytes = len(filtered.NodeNames), len(answer)
	}
	result.Livez, err = health()
	return result, err
}

// unjudged is what the extender says of a node for which it had no time.
const unjudged = "There was no time to check the node"

// limits are those of the asked pod. With Containers, the digits of the call say which of them asks for two cores.
func limits(task Task, call int) []map[string]string {
	if task.Containers == 0 {
		return []map[string]string{task.Limits}
	}
	found := []map[string]string{}
	for number := range task.Containers {
		found = append(found, map[string]string{core: strconv.Itoa(1 + call>>number&1)})
	}
	return found
}

// watchHealth asks for /livez a hundred times a second, until the durations are asked for.
func watchHealth(client *http.Client, url string) func() ([]float64, error) {
	stop, ended := make(chan bool), make(chan bool)
	var found []float64
	var failed error
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			begun := time.Now()
			response, err := client.Get(url + "/livez")
			if err == nil {
				response.Body.Close()
				if response.StatusCode != http.StatusOK {
					err = fmt.Errorf("/livez answers %d", response.StatusCode)
				}
			}
			if err != nil {
				failed = err
			}
			found = append(found, milliseconds(begun))
		}
	}()
	return func() ([]float64, error) {
		close(stop)
		<-ended
		return found, failed
	}
}

// bind has pods bound by the extender and, by turns, others by the API server alone.
func bind(cluster *Cluster, client *http.Client, task Task) (Result, error) {
	var result Result
	for call := range task.Warm + task.Calls {
		node := cluster.names[call%len(cluster.names)]
		mine, other := cluster.add(task.Limits), cluster.add(map[string]string{})
		// The news of the pods arrives at the extender while the scheduler filters.
		time.Sleep(20 * time.Millisecond)
		begun := time.Now()
		order, _ := json.Marshal(map[string]string{
			"PodName": mine.Metadata.Name, "PodNamespace": namespace, "PodUID": mine.Metadata.UID, "Node": node,
		})
		answer, err := post(client, task.Extender+"/bind", order)
		took := milliseconds(begun)
		if err != nil {
			return Result{}, err
		}
		var refusal struct{ Error string }
		if err := json.Unmarshal(answer, &refusal); err != nil || refusal.Error != "" {
			return Result{}, fmt.Errorf("%s was not bound to %s: %s %w", mine.Metadata.Name, node, refusal.Error, err)
		}
		begun = time.Now()
		binding, _ := json.Marshal(map[string]any{
			"metadata": map[string]any{"name": other.Metadata.Name}, "target": map[string]string{"name": node},
		})
		path := "/api/v1/namespaces/" + namespace + "/pods/" + other.Metadata.Name + "/binding"
		if _, err := post(client, cluster.url+path, binding); err != nil {
			return Result{}, err
		}
		if call >= task.Warm {
			result.Milliseconds = append(result.Milliseconds, took)
			result.Alone = append(result.Alone, milliseconds(begun))
		}
	}
	return result, nil
}

func post(client *http.Client, url string, body []byte) ([]byte, error) {
	response, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("status %d: %.200s", response.StatusCode, answer)
	}
	return answer, err
}

func milliseconds(since time.Time) float64 {
	return float64(time.Since(since)) / float64(time.Millisecond)
}
