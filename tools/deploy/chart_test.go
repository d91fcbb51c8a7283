package deploy

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write deploy/kubernetes again from the chart")

// Objects are what the chart renders to.
type objects struct {
	text string
	// pods has the pod of each StatefulSet and Deployment, by name.
	pods      map[string]core.PodSpec
	labels    map[string]labels.Set // of the pods
	services  map[string]core.Service
	budgets   []policy.PodDisruptionBudget
	workloads map[string]*meta.LabelSelector
	claims    map[string][]core.PersistentVolumeClaim
}

// render runs helm template and decodes each object strictly.
func render(t *testing.T, args ...string) *objects {
	t.Helper()
	chart := filepath.Join(root, "deploy/helm/kvlane")
	o := &objects{
		pods: map[string]core.PodSpec{}, labels: map[string]labels.Set{}, services: map[string]core.Service{},
		workloads: map[string]*meta.LabelSelector{}, claims: map[string][]core.PersistentVolumeClaim{},
	}
	o.text = run(t, exec.Command(tool(t, "helm"), append([]string{"template", "kvlane", chart}, args...)...)) //nolint:gosec // of the test
	for _, text := range strings.Split(o.text, "\n---\n") {
		var kind meta.TypeMeta
		if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		decode := func(into any) {
			if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
				t.Errorf("%v in\n%s", err, text)
			}
		}
		switch kind.Kind {
		case "StatefulSet":
			var s apps.StatefulSet
			decode(&s)
			o.add(s.Name, s.Spec.Template, s.Spec.Selector)
			o.claims[s.Name] = s.Spec.VolumeClaimTemplates
			if s.Spec.ServiceName == "" {
				t.Error("a StatefulSet without a service: its pods have no names")
			}
		case "Deployment":
			var d apps.Deployment
			decode(&d)
			o.add(d.Name, d.Spec.Template, d.Spec.Selector)
		case "Service":
			var s core.Service
			decode(&s)
			o.services[s.Name] = s
		case "PodDisruptionBudget":
			var b policy.PodDisruptionBudget
			decode(&b)
			o.budgets = append(o.budgets, b)
		default:
			t.Errorf("an object of kind %q that the test does not know:\n%s", kind.Kind, text)
		}
	}
	return o
}

func (o *objects) add(name string, pod core.PodTemplateSpec, selector *meta.LabelSelector) {
	o.pods[name], o.labels[name], o.workloads[name] = pod.Spec, pod.Labels, selector
}

// selects reports whether a selector finds the pods of exactly one workload.
func (o *objects) selects(t *testing.T, who string, selector *meta.LabelSelector) {
	t.Helper()
	s, err := meta.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, set := range o.labels {
		if s.Matches(set) {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%s selects the pods of %d workloads", who, n)
	}
}

// hasPort reports whether a container of the pods has a port of this name.
func hasPort(pod *core.PodSpec, port intstr.IntOrString) bool {
	for _, c := range pod.Containers {
		for _, p := range c.Ports {
			if p.Name == port.StrVal {
				return true
			}
		}
	}
	return false
}

// values are those that the tests render the chart with.
var values = map[string][]string{
	"defaults":     nil,
	"blocks alone": {"--set", "vllm.enabled=false"},
	"vllm alone":   {"--set", "blockServers.enabled=false,vllm.files.hostPath=/mnt/nvme,vllm.files.bytesGiB=100"},
	"everything": {"--set", "blockServers.replicas=5,blockServers.disk.sizeGiB=100,blockServers.disk.bytesGiB=90,blockServers.disk.storageClassName=fast" +
		",blockServers.nodeSelector.pool=blocks,blockServers.tolerations[0].operator=Exists,vllm.tensorParallel=4,vllm.huggingFaceSecret=hf,vllm.args={--max-model-len=8192}"},
}

func TestChart(t *testing.T) {
	run(t, exec.Command(tool(t, "helm"), "lint", "--strict", filepath.Join(root, "deploy/helm/kvlane"))) //nolint:gosec // of the test
	for name, args := range values {
		t.Run(name, func(t *testing.T) {
			o := render(t, args...)
			for name, selector := range o.workloads {
				o.selects(t, name, selector)
			}
			for _, b := range o.budgets {
				o.selects(t, "budget "+b.Name, b.Spec.Selector)
			}
			for _, s := range o.services {
				o.selects(t, "service "+s.Name, &meta.LabelSelector{MatchLabels: s.Spec.Selector})
				pod := o.pods[s.Name]
				for _, p := range s.Spec.Ports {
					if !hasPort(&pod, p.TargetPort) {
						t.Errorf("service %s: no container has port %s", s.Name, p.TargetPort.StrVal)
					}
				}
			}
			for name, pod := range o.pods {
				checkPod(t, name, &pod, o.claims[name])
			}
		})
	}
}

// checkPod checks that probes name ports and mounts name volumes of the pod.
func checkPod(t *testing.T, name string, pod *core.PodSpec, claims []core.PersistentVolumeClaim) {
	t.Helper()
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, c := range claims {
		volumes[c.Name] = true
	}
	for _, c := range pod.Containers {
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s: mount %s has no volume", name, m.Name)
			}
			delete(volumes, m.Name)
		}
		for _, p := range []*core.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
			if p == nil || p.HTTPGet == nil || !hasPort(pod, p.HTTPGet.Port) {
				t.Errorf("%s: probe %+v names no port of the pod", name, p)
			}
		}
		if c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s: no limit of memory", name)
		}
	}
	if len(volumes) > 0 {
		t.Errorf("%s: volumes %v are not mounted", name, volumes)
	}
}

// Values that contradict each other are refused with what to set.
func TestChartRefuses(t *testing.T) {
	for set, want := range map[string]string{
		"blockServers.disk.sizeGiB=10":                               "set it to more than 0 and at most disk.sizeGiB",
		"blockServers.disk.sizeGiB=10,blockServers.disk.bytesGiB=11": "set it to more than 0 and at most disk.sizeGiB",
		"vllm.files.hostPath=/mnt/nvme":                              "vllm.files.bytesGiB: set it to more than 0",
	} {
		out, err := exec.Command(tool(t, "helm"), "template", "kvlane", filepath.Join(root, "deploy/helm/kvlane"), "--set", set).CombinedOutput() //nolint:gosec // of the test
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("--set %s: %v, %s; want %q", set, err, out, want)
		}
	}
}

// The manifests are the chart's with its defaults.
func TestManifestsAreTheCharts(t *testing.T) {
	for name, args := range map[string][]string{
		"block-servers.yaml":          {"--set", "vllm.enabled=false"},
		"vllm.yaml":                   {"--set", "blockServers.enabled=false"},
		"vllm-and-block-servers.yaml": nil,
	} {
		file := filepath.Join(root, "deploy/kubernetes", name)
		text := strings.ReplaceAll(render(t, args...).text, "managed-by: Helm", "managed-by: kubectl")
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil { //nolint:gosec // a file for all to read
				t.Fatal(err)
			}
		}
		committed, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(committed) != text {
			t.Errorf("%s is not what the chart renders to: run make deploy UPDATE=1", file)
		}
	}
}
