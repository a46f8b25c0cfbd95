// Command benchmark-client calls DRA drivers as kubelet does and measures how long they take. It reads one job from
// standard input and writes one result for each of its steps to standard output, both as JSON; scripts/benchmark
// makes the job and judges the results.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
)

// callTimeout is kubelet's.
const callTimeout = 45 * time.Second

// Job is what is asked for.
type Job struct {
	// Server is the API server's URL; CA, Certificate and Key are files.
	Server, CA, Certificate, Key string
	Steps                        []Step
}

// Step is some calls for some claims, AtOnce of them at a time. The actions in Do are done one after the other for each
// claim: "get" asks the API server for the claim, "prepare" and "unprepare" call the driver at Socket.
type Step struct {
	Socket string
	Claims []Claim
	AtOnce int
	Do     []string
}

// Claim names a ResourceClaim; Path is its path in the API.
type Claim struct{ Namespace, Name, UID, Path string }

// Result has the duration of every call in milliseconds by action, and of the whole step in seconds.
type Result struct {
	Milliseconds map[string][]float64
	Seconds      float64
}

// Client holds the connections, which all steps share as kubelet's calls do.
type Client struct {
	server  string
	http    *http.Client
	drivers map[string]dra.DRAPluginClient
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "benchmark-client:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	var job Job
	if err := json.NewDecoder(in).Decode(&job); err != nil {
		return fmt.Errorf("cannot read the job: %w", err)
	}
	client, err := connect(job)
	if err != nil {
		return err
	}
	results := make([]Result, 0, len(job.Steps))
	for number, step := range job.Steps {
		result, err := client.step(step)
		if err != nil {
			return fmt.Errorf("step %d: %w", number, err)
		}
		results = append(results, result)
	}
	return json.NewEncoder(out).Encode(results)
}

func connect(job Job) (*Client, error) {
	authority, err := os.ReadFile(job.CA)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.LoadX509KeyPair(job.Certificate, job.Key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, errors.New("no certificate in " + job.CA)
	}
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}},
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 64,
	}
	client := &Client{job.Server, &http.Client{Transport: transport, Timeout: callTimeout}, map[string]dra.DRAPluginClient{}}
	for _, step := range job.Steps {
		if step.Socket == "" || client.drivers[step.Socket] != nil {
			continue
		}
		connection, err := grpc.NewClient("unix:"+step.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		connection.Connect()
		client.drivers[step.Socket] = dra.NewDRAPluginClient(connection)
	}
	return client, nil
}

func (c *Client) step(step Step) (Result, error) {
	result := Result{Milliseconds: map[string][]float64{}}
	var failure error
	var lock sync.Mutex
	var workers sync.WaitGroup
	claims := make(chan Claim)
	started := time.Now()
	for range step.AtOnce {
		workers.Go(func() {
			for claim := range claims {
				for _, action := range step.Do {
					begun := time.Now()
					err := c.call(action, step.Socket, claim)
					took := float64(time.Since(begun)) / float64(time.Millisecond)
					lock.Lock()
					result.Milliseconds[action] = append(result.Milliseconds[action], took)
					if err != nil {
						failure = errors.Join(failure, fmt.Errorf("%s of %s: %w", action, claim.Name, err))
					}
					lock.Unlock()
				}
			}
		})
	}
	for _, claim := range step.Claims {
		claims <- claim
	}
	close(claims)
	workers.Wait()
	result.Seconds = time.Since(started).Seconds()
	return result, failure
}

func (c *Client) call(action, socket string, claim Claim) error {
	context, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	claims := []*dra.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: claim.UID}}
	switch action {
	case "get":
		return c.get(claim.Path)
	case "prepare":
		answer, err := c.drivers[socket].NodePrepareResources(context, &dra.NodePrepareResourcesRequest{Claims: claims}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		entry := answer.Claims[claim.UID]
		if entry == nil || len(entry.Devices) == 0 && entry.Error == "" {
			return errors.New("the driver prepared nothing")
		}
		return failed(entry.Error)
	case "unprepare":
		answer, err := c.drivers[socket].NodeUnprepareResources(context, &dra.NodeUnprepareResourcesRequest{Claims: claims}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		entry := answer.Claims[claim.UID]
		if entry == nil {
			return errors.New("the driver gave no answer for the claim")
		}
		return failed(entry.Error)
	}
	return errors.New("unknown action")
}

func (c *Client) get(path string) error {
	answer, err := c.http.Get(c.server + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

func failed(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}
