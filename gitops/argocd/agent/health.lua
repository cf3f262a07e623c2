-- What Argo CD shows of an Agent, and what a sync waits for: that it is enrolled. A suspended one is, and is Healthy, not
-- Suspended: a sync would wait for it, and never come to the Alarms behind it.
local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end
local function is(name, value)
  return conditions[name] ~= nil and conditions[name].status == value
end
local function told(health, name)
  return { status = health, message = conditions[name].message }
end

if obj.metadata.deletionTimestamp ~= nil then
  if is("Reconciling", "True") then
    return told("Progressing", "Reconciling")
  end
  return { status = "Progressing", message = "Being deleted" }
end
-- -1 until the controller has seen it at all.
if (status.observedGeneration or -1) < obj.metadata.generation or conditions.Ready == nil then
  return { status = "Progressing", message = "Waiting for Chronos to look at it" }
end
if is("Stalled", "True") then
  return told("Degraded", "Stalled")
end
if is("Reconciling", "True") then
  return told("Progressing", "Reconciling")
end
if not is("Ready", "True") then
  return told("Progressing", "Ready")
end
return told("Healthy", "Ready")
