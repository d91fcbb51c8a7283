{{- define "kvlane.blocks" -}}
{{ .Release.Name }}-blocks
{{- end }}

{{- define "kvlane.labels" -}}
app.kubernetes.io/name: kvlane
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* The block servers' SRV records, as the setting store.remote takes them: a change of replicas needs no restart of vLLM. */}}
{{- define "kvlane.servers" -}}
dns+srv://_blocks._tcp.{{ include "kvlane.blocks" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- /* The value of vLLM's --kv-transfer-config. */}}
{{- define "kvlane.transferConfig" -}}
{{- $store := dict "cache_bytes" (mul (int64 .Values.vllm.cacheGiB) 1073741824) -}}
{{- with .Values.vllm.files.hostPath -}}
{{- $_ := set $store "dirs" (list "/var/cache/kvlane") -}}
{{- $_ := set $store "file_bytes" (mul (int64 $.Values.vllm.files.bytesGiB) 1073741824) -}}
{{- end -}}
{{- if .Values.blockServers.enabled -}}
{{- $_ := set $store "remote" (include "kvlane.servers" .) -}}
{{- $_ := set $store "remote_ca" "/etc/kvlane/ca.crt" -}}
{{- $_ := set $store "remote_token" "/etc/kvlane/token" -}}
{{- end -}}
{{- dict "kv_connector" "Connector" "kv_connector_module_path" "kvlane.vllm" "kv_role" "kv_both" "kv_load_failure_policy" "recompute" "kv_connector_extra_config" (dict "store" $store) | toJson -}}
{{- end }}
