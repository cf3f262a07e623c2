#!/usr/bin/env bash
# testbed/argocd-cm.sh   prints gitops/argocd/argocd-cm.yaml: the scripts beside it, under the keys at which Argo CD looks
set -euo pipefail
cd "$(dirname "$0")/../gitops/argocd"

text() { # SPACES FILE: as it stands in a YAML block, without spaces on empty lines
  sed "s/^./$(printf "%$1s")&/" "$2"
}

cat <<'YAML'
# Generated from the .lua files beside it; `make generate` writes it, `make verify` compares.
# Not a whole argocd-cm. This adds it to the one that is there, and leaves the rest of that alone:
#   kubectl -n argocd apply --server-side --field-manager=chronos -f argocd-cm.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: argocd-cm
  labels:
    app.kubernetes.io/name: argocd-cm
    app.kubernetes.io/part-of: argocd
data:
YAML
for kind in Agent Alarm; do
  echo "  resource.customizations.health.chronos.dev_$kind: |"
  text 4 "${kind,,}/health.lua"
done
echo '  resource.customizations.actions.chronos.dev_Alarm: |'
echo '    discovery.lua: |'
text 6 alarm/actions/discovery.lua
echo '    definitions:'
for action in fire suspend resume; do
  printf '    - name: %s\n      action.lua: |\n' "$action"
  text 8 "alarm/actions/$action.lua"
done
