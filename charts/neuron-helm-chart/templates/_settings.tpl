{{/* Made by `scripts/generate chart-settings` from the tables of the programs' settings; do not edit. */}}
{{- define "neuron.settings" -}}
{"draDriver": [
  {"variable": "RESCAN_SECONDS", "value": "rescanSeconds", "switch": ""},
  {"variable": "DEVICE_NUMBERING", "value": "deviceNumbering", "switch": ""},
  {"variable": "CONTIGUITY_POLICY", "value": "contiguity", "switch": ""},
  {"variable": "PARTITIONS", "value": "partitions", "switch": ""},
  {"variable": "SHARED_COUNTERS", "value": "sharedCounters", "switch": ""},
  {"variable": "ULTRASERVER_LABELS", "value": "ultraserverLabels", "switch": "on"},
  {"variable": "PRESENT_LABEL", "value": "presentLabel", "switch": "on"},
  {"variable": "NODE_STATUS", "value": "nodeStatus", "switch": "on"},
  {"variable": "DEVICE_METADATA", "value": "deviceMetadata", "switch": "off"},
  {"variable": "CLAIM_STATUS", "value": "claimStatus", "switch": "on"},
  {"variable": "EMULATED_DRIVER_VERSION", "value": "emulatedDriverVersion", "switch": ""},
  {"variable": "EMULATED_FAULTS", "value": "emulatedFaults", "switch": ""},
  {"variable": "EMULATED_ULTRASERVERS", "value": "emulatedUltraservers", "switch": ""}
],
"npd": [
  {"variable": "LOOKBACK_SECONDS", "value": "lookbackSeconds", "switch": ""},
  {"variable": "RESCAN_SECONDS", "value": "rescanSeconds", "switch": ""}
],
"devicePlugin": [
  {"variable": "RESCAN_SECONDS", "value": "rescanSeconds", "switch": ""},
  {"variable": "DEVICE_NUMBERING", "value": "deviceNumbering", "switch": ""},
  {"variable": "VISIBLE_CORES_VARIABLE", "value": "visibleCoresVariable", "switch": ""},
  {"variable": "EMULATED_DRIVER_VERSION", "value": "emulatedDriverVersion", "switch": ""},
  {"variable": "EMULATED_FAULTS", "value": "emulatedFaults", "switch": ""}
]}
{{- end -}}
