// Command karpenter-1.15.0 is Karpenter with its kwok provider, whose instance types also tell which ResourceSlices
// their nodes will have.
//
// Karpenter's core reads them from InstanceType.DynamicResources, which only the code of a cloud provider can set; the
// kwok provider of 1.15.0 leaves it empty. This program reads it from the file of instance types (the option
// --instance-types-file-path, which the kwok provider reads too and whose other keys are its own): the key
// dynamicResources of each entry, with the fields of cloudprovider.DynamicResources in the JSON of resource.k8s.io/v1.
// All else is sigs.k8s.io/karpenter/kwok, whose main function this one repeats.
//
// With the one argument crds it prints the CustomResourceDefinitions of both, as a List in JSON.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"unique"

	"github.com/samber/lo"
	resourcev1 "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	kwokapis "sigs.k8s.io/karpenter/kwok/apis"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	kwokoptions "sigs.k8s.io/karpenter/kwok/options"
	"sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

// instanceType is an entry of the file of instance types, as far as the kwok provider does not read it.
type instanceType struct {
	Name             string          `json:"name"`
	DynamicResources json.RawMessage `json:"dynamicResources"`
}

// dynamicResources is cloudprovider.DynamicResources as JSON: the names in it are strings, not handles.
type dynamicResources struct {
	ResourceSliceTemplates []struct {
		Driver string `json:"driver"`
		Pool   struct {
			Name string `json:"name"`
		} `json:"pool"`
		Devices        []device                `json:"devices"`
		SharedCounters []resourcev1.CounterSet `json:"sharedCounters"`
	} `json:"resourceSliceTemplates"`
	AttributeBindings []struct {
		Attribute resourcev1.QualifiedName `json:"attribute"`
		Devices   []struct {
			Driver string `json:"driver"`
			Pool   string `json:"pool"`
			Device string `json:"device"`
		} `json:"devices"`
	} `json:"attributeBindings"`
}

type device struct {
	Name                     string                                                  `json:"name"`
	Attributes               map[resourcev1.QualifiedName]resourcev1.DeviceAttribute `json:"attributes"`
	Capacity                 map[resourcev1.QualifiedName]resourcev1.DeviceCapacity  `json:"capacity"`
	AllowMultipleAllocations bool                                                    `json:"allowMultipleAllocations"`
	ConsumesCounters         []resourcev1.DeviceCounterConsumption                   `json:"consumesCounters"`
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "crds" {
		crds := apiextensionsv1.CustomResourceDefinitionList{}
		crds.APIVersion, crds.Kind = "v1", "List"
		for _, crd := range append(apis.CRDs, kwokapis.CRDs...) {
			crds.Items = append(crds.Items, *crd)
		}
		lo.Must0(json.NewEncoder(os.Stdout).Encode(crds))
		return
	}
	ctx, op := operator.NewOperator()
	instanceTypes := lo.Must(kwok.ConstructInstanceTypes(ctx))
	if path := kwokoptions.FromContext(ctx).InstanceTypesFilePath; path != "" {
		lo.Must0(addDynamicResources(ctx, path, instanceTypes))
	}
	provider := kwok.NewCloudProvider(ctx, op.GetClient(), instanceTypes)
	decorated := overlay.Decorate(provider, op.GetClient(), op.InstanceTypeStore)
	matcher := lo.Must(health.NewRepairPolicyMatcher(ctx, decorated))
	cluster := state.NewCluster(op.Clock, op.GetClient(), decorated, state.WithRepairPolicyMatcher(matcher))
	op.WithControllers(ctx, controllers.NewControllers(
		ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, decorated, provider, cluster,
		op.InstanceTypeStore, op.PredictionStore,
	)...).Start(ctx)
}

func addDynamicResources(ctx context.Context, path string, instanceTypes []*cloudprovider.InstanceType) error {
	contents, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var entries []instanceType
	if err := json.Unmarshal(contents, &entries); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, entry := range entries {
		if len(entry.DynamicResources) == 0 {
			continue
		}
		found, _ := lo.Find(instanceTypes, func(it *cloudprovider.InstanceType) bool { return it.Name == entry.Name })
		var resources dynamicResources
		decoder := json.NewDecoder(bytes.NewReader(entry.DynamicResources))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&resources); err != nil {
			return fmt.Errorf("%s: dynamicResources of %s: %w", path, entry.Name, err)
		}
		found.DynamicResources = resources.inCore()
		log.FromContext(ctx).Info("instance type with devices", "instance-type", entry.Name,
			"templates", len(found.DynamicResources.ResourceSliceTemplates))
	}
	return nil
}

// inCore returns the values that Karpenter's core reads.
func (r dynamicResources) inCore() cloudprovider.DynamicResources {
	out := cloudprovider.DynamicResources{}
	for _, template := range r.ResourceSliceTemplates {
		slice := &cloudprovider.ResourceSliceTemplate{
			Driver:         unique.Make(template.Driver),
			Pool:           cloudprovider.ResourcePool{Name: unique.Make(template.Pool.Name)},
			SharedCounters: template.SharedCounters,
		}
		for _, d := range template.Devices {
			slice.Devices = append(slice.Devices, cloudprovider.Device{
				Name: unique.Make(d.Name), Attributes: d.Attributes, Capacity: d.Capacity,
				AllowMultipleAllocations: d.AllowMultipleAllocations, ConsumesCounters: d.ConsumesCounters,
			})
		}
		out.ResourceSliceTemplates = append(out.ResourceSliceTemplates, slice)
	}
	for _, binding := range r.AttributeBindings {
		bound := &cloudprovider.AttributeBinding{Attribute: binding.Attribute}
		for _, d := range binding.Devices {
			bound.Devices = append(bound.Devices, cloudprovider.DeviceID{
				Driver: unique.Make(d.Driver), Pool: unique.Make(d.Pool), Device: unique.Make(d.Device),
			})
		}
		out.AttributeBindings = append(out.AttributeBindings, bound)
	}
	return out
}
