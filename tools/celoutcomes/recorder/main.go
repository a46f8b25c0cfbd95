// The recorder tells what Kubernetes does with device selectors and with quantities: one JSON question a line on standard
// input, one JSON answer a line on standard output. It is built against the modules of the Kubernetes version in
// question.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"gopkg.in/inf.v0"
	resourcev1 "k8s.io/api/resource/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/apis/resource/validation"
	"k8s.io/kubernetes/pkg/features"
)

type device struct {
	Driver string            `json:"driver"`
	Device resourcev1.Device `json:"device"`
}

// A question has either Quantity or the others.
type question struct {
	Quantity   *string  `json:"quantity"`
	Expression string   `json:"expression"`
	Devices    []device `json:"devices"`
}

// An answer has either Refused or the others. A result is a bool, or the text of the error.
type answer struct {
	Refused string `json:"refused,omitempty"`
	Cost    uint64 `json:"cost"`
	Used    uint64 `json:"used"`
	Results []any  `json:"results,omitempty"`
}

// A quantityAnswer has nil for what is refused. Read is what CEL makes of the text, Stored what others read after the API
// server has stored it as a capacity, and Text how it then stands there.
type quantityAnswer struct {
	Read   *amount `json:"read"`
	Stored *amount `json:"stored"`
	Text   string  `json:"text,omitempty"`
}

// An amount is in units of 10^-9. Integer is nil where Kubernetes does not tell the quantity as an int64.
type amount struct {
	Nanos   string             `json:"nanos"`
	Integer *int64             `json:"integer"`
	Format  apiresource.Format `json:"format"`
}

func askQuantity(text string) quantityAnswer {
	var given quantityAnswer
	if read, err := apiresource.ParseQuantity(text); err == nil {
		given.Read = amountOf(read)
	}
	sent, err := json.Marshal(text)
	if err != nil {
		log.Fatalf("a text that is no JSON: %v", err)
	}
	var received apiresource.Quantity
	if json.Unmarshal(sent, &received) == nil {
		given.Text = received.String()
		given.Stored = amountOf(apiresource.MustParse(given.Text))
	}
	return given
}

func amountOf(quantity apiresource.Quantity) *amount {
	made := &amount{Format: quantity.Format}
	if whole, ok := quantity.AsInt64(); ok {
		made.Integer = &whole
	}
	nanos := new(inf.Dec).Mul(quantity.AsDec(), inf.NewDec(1, -9))
	made.Nanos = nanos.Round(nanos, 0, inf.RoundExact).String()
	return made
}

// ask does what the API server does when a DeviceClass with the selector is created, and then for each device what
// the scheduler does: it compiles the selector once more, as a stored one.
func ask(asked question) answer {
	class := &resource.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "class"},
		Spec: resource.DeviceClassSpec{Selectors: []resource.DeviceSelector{
			{CEL: &resource.CELDeviceSelector{Expression: asked.Expression}},
		}},
	}
	if refused := validation.ValidateDeviceClass(class); len(refused) > 0 {
		return answer{Refused: refused[0].Detail}
	}
	compiler := dracel.GetCompiler(dracel.Features{
		EnableConsumableCapacity: utilfeature.DefaultFeatureGate.Enabled(features.DRAConsumableCapacity),
		EnableListTypeAttributes: utilfeature.DefaultFeatureGate.Enabled(features.DRAListTypeAttributes),
	})
	admitted := environment.NewExpressions
	given := answer{Cost: compiler.CompileCELExpression(asked.Expression, dracel.Options{EnvType: &admitted}).MaxCost}
	stored := compiler.CompileCELExpression(asked.Expression, dracel.Options{DisableCostEstimation: true})
	if stored.Error != nil {
		given.Results = append(given.Results, "stored: "+stored.Error.Error())
		return given
	}
	for _, item := range asked.Devices {
		matches, details, err := stored.DeviceMatches(context.Background(), dracel.Device{
			Driver:                   item.Driver,
			AllowMultipleAllocations: item.Device.AllowMultipleAllocations,
			Attributes:               item.Device.Attributes,
			Capacity:                 item.Device.Capacity,
		})
		if details != nil && details.ActualCost() != nil {
			given.Used = max(given.Used, *details.ActualCost())
		}
		if err != nil {
			given.Results = append(given.Results, err.Error())
		} else {
			given.Results = append(given.Results, matches)
		}
	}
	return given
}

func main() {
	questions := bufio.NewScanner(os.Stdin)
	questions.Buffer(nil, 16<<20)
	for questions.Scan() {
		var asked question
		if err := json.Unmarshal(questions.Bytes(), &asked); err != nil {
			log.Fatalf("not a question: %v", err)
		}
		var given any
		if asked.Quantity != nil {
			given = askQuantity(*asked.Quantity)
		} else {
			given = ask(asked)
		}
		text, err := json.Marshal(given)
		if err != nil {
			log.Fatalf("an answer that is no JSON: %v", err)
		}
		fmt.Println(string(text))
	}
	if err := questions.Err(); err != nil {
		log.Fatal(err)
	}
}
