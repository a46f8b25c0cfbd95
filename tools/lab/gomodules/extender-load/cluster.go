package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	namespace = "jobs"
	device    = "aws.amazon.com/neuron"
	core      = "aws.amazon.com/neuroncore"
)

// kinds are the instance types of the nodes, by turns: how many devices, and logical cores of each.
type kind struct {
	name           string
	devices, cores int
}

var kinds = []kind{
	{"trn1.32xlarge", 16, 2},
	{"trn2.48xlarge", 16, 4},
	{"inf2.48xlarge", 12, 2},
	{"inf1.24xlarge", 16, 4},
}

// largest is the type with the most cores: that of all nodes where no two are to be alike.
var largest = []kind{{"trn2.48xlarge", 16, 8}}

// Meta and Object are what all objects of the API have; Spec and Status differ.
type Meta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace,omitempty"`
	UID             string            `json:"uid"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

type Object struct {
	Metadata Meta           `json:"metadata"`
	Spec     map[string]any `json:"spec"`
	Status   map[string]any `json:"status"`
}

// Cluster stands in for an API server with nodes and pods: lists in pages, watches, bindings, patches of annotations.
type Cluster struct {
	url    string
	names  []string
	writes atomic.Int64

	lock    sync.Mutex
	version int
	objects map[string][]*Object
	byName  map[string]*Object
	watches map[chan []byte]string
}

func newCluster(nodes, pods int, different bool) *Cluster {
	kinds := kinds
	if different {
		kinds = largest
	}
	c := &Cluster{
		version: 1, objects: map[string][]*Object{}, byName: map[string]*Object{}, watches: map[chan []byte]string{},
	}
	for number := range nodes {
		name := fmt.Sprintf("ip-10-%d-%d-%d.us-west-2.compute.internal", number/65536, number/256%256, number%256)
		kind := kinds[number%len(kinds)]
		capacity := map[string]string{
			"cpu": "128", device: strconv.Itoa(kind.devices), core: strconv.Itoa(kind.devices * kind.cores),
		}
		node := &Object{Meta{Name: name, UID: name, Labels: map[string]string{"node.kubernetes.io/instance-type": kind.name}},
			map[string]any{}, map[string]any{"capacity": capacity, "allocatable": capacity}}
		for label := range 20 {
			node.Metadata.Labels[fmt.Sprintf("example.com/label-%d", label)] = name
		}
		c.names = append(c.names, name)
		c.put("nodes", node)
	}
	for number := range pods {
		kind := kinds[number%nodes%len(kinds)]
		// Spread out, so that every node has some sets left and some broken.
		resource, ids := device, []string{strconv.Itoa(number / nodes * 3 % kind.devices)}
		if different {
			resource, ids = core, scattered(number%nodes, number/nodes, max(pods/nodes, 1), kind.devices*kind.cores)
		}
		if len(ids) == 0 {
			continue
		}
		listed := strings.Join(ids, ",")
		allocation := fmt.Sprintf(
			`{"coresPerDevice":%d,"containers":[{"name":"main","resource":%q,"ids":%q}]}`, kind.cores, resource, listed)
		limits := map[string]string{resource: strconv.Itoa(len(ids))}
		item := pod(fmt.Sprintf("training-%d-worker", number), c.names[number%nodes], []map[string]string{limits},
			map[string]string{
				"AWS_NEURON_IDS": listed, "NEURON_RESOURCE_TYPE": resource, "NEURON_ALLOCATED": "true",
				"NEURON_ALLOC_TIME":         strconv.Itoa(1795282037887397618 + number),
				"neuron.aws.com/allocation": allocation,
			})
		c.put("pods", item)
	}
	return c
}

// scattered gives one of the pods of a node its cores. All pods of a node together have a fifth of them to nearly all,
// in no order, and never all.
func scattered(node, part, parts, cores int) []string {
	random := rand.New(rand.NewPCG(uint64(node), 0))
	share, free := 0.2+0.75*random.Float64(), random.IntN(cores)
	ids, taken := []string{}, 0
	for id := range cores {
		if random.Float64() > share || id == free {
			continue
		}
		if taken%parts == part {
			ids = append(ids, strconv.Itoa(id))
		}
		taken++
	}
	return ids
}

// pod has the size of a usual one: about 4 kB, and as many containers as limits.
func pod(name, node string, limits []map[string]string, annotations map[string]string) *Object {
	environment := []map[string]string{}
	for number := range 30 {
		environment = append(environment, map[string]string{
			"name": fmt.Sprintf("VARIABLE_%d", number), "value": "a value that is as long as they are",
		})
	}
	labels := map[string]string{}
	for number := range 8 {
		labels[fmt.Sprintf("app.kubernetes.io/label-%d", number)] = name
	}
	containers := []any{}
	for number, limit := range limits {
		container := map[string]any{
			"name": "main", "image": "registry.example/training:1", "env": environment,
			"resources": map[string]any{"limits": limit, "requests": limit},
		}
		if number > 0 {
			container["name"] = fmt.Sprintf("more-%d", number)
		}
		containers = append(containers, container)
	}
	spec := map[string]any{"containers": containers, "schedulerName": "my-scheduler"}
	status := map[string]any{"phase": "Pending"}
	if node != "" {
		spec["nodeName"], status["phase"] = node, "Running"
	}
	return &Object{Meta{Name: name, Namespace: namespace, UID: "uid-of-" + name, Labels: labels, Annotations: annotations},
		spec, status}
}

// add makes a new pod that is not bound.
func (c *Cluster) add(limits map[string]string) *Object {
	c.lock.Lock()
	defer c.lock.Unlock()
	item := pod(fmt.Sprintf("new-%d", c.version), "", []map[string]string{limits}, nil)
	c.put("pods", item)
	c.tell("pods", "ADDED", item)
	return item
}

// put stores a new object; tell sends it to the watches. Both need the lock once requests are served.
func (c *Cluster) put(kind string, item *Object) {
	c.version++
	item.Metadata.ResourceVersion = strconv.Itoa(c.version)
	c.objects[kind] = append(c.objects[kind], item)
	c.byName[kind+"/"+item.Metadata.Name] = item
}

func (c *Cluster) tell(kind, change string, item *Object) {
	line, _ := json.Marshal(map[string]any{"type": change, "object": item})
	for watch, of := range c.watches {
		if of == kind {
			watch <- append(line, '\n')
		}
	}
}

func (c *Cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case len(parts) == 1 && r.URL.Query().Has("watch"):
		c.watch(w, r, parts[0])
	case len(parts) == 1:
		c.list(w, r, parts[0])
	default:
		c.write(w, r, parts[0], parts[1], len(parts) > 2)
	}
}

func (c *Cluster) list(w http.ResponseWriter, r *http.Request, kind string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	start, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	items := c.objects[kind]
	end := min(start+max(limit, 1), len(items))
	meta := map[string]string{"resourceVersion": strconv.Itoa(c.version)}
	if end < len(items) {
		meta["continue"] = strconv.Itoa(end)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"metadata": meta, "items": items[start:end]})
}

func (c *Cluster) watch(w http.ResponseWriter, r *http.Request, kind string) {
	events := make(chan []byte, 65536)
	c.lock.Lock()
	c.watches[events] = kind
	c.lock.Unlock()
	defer func() {
		c.lock.Lock()
		delete(c.watches, events)
		c.lock.Unlock()
	}()
	flusher := w.(http.Flusher)
	flusher.Flush()
	for {
		select {
		case line := <-events:
			_, _ = w.Write(line)
			flusher.Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// write reads, patches or binds one object.
func (c *Cluster) write(w http.ResponseWriter, r *http.Request, kind, name string, binding bool) {
	body, err := io.ReadAll(r.Body)
	var change struct {
		Metadata Meta
		Target   Meta
	}
	if err == nil && len(body) > 0 {
		err = json.Unmarshal(body, &change)
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	item := c.byName[kind+"/"+name]
	if err != nil || item == nil {
		http.Error(w, `{"kind":"Status","code":404}`, http.StatusNotFound)
		return
	}
	if r.Method == http.MethodGet {
		_ = json.NewEncoder(w).Encode(item)
		return
	}
	c.writes.Add(1)
	c.version++
	item.Metadata.ResourceVersion = strconv.Itoa(c.version)
	if item.Metadata.Annotations == nil {
		item.Metadata.Annotations = map[string]string{}
	}
	for key, text := range change.Metadata.Annotations {
		item.Metadata.Annotations[key] = text
	}
	if binding {
		item.Spec["nodeName"] = change.Target.Name
		w.WriteHeader(http.StatusCreated)
	}
	c.tell(kind, "MODIFIED", item)
	_ = json.NewEncoder(w).Encode(item)
}
