-- What Argo CD shows of an Alarm, and what a sync waits for: that it is stored and scheduled as Git says. Whether its wakes
-- are taken is told, but judged by nobody here: a router that is down would turn every application red.
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
  return { status = "Progressing", message = "Being deleted: its alarm is cancelled first" }
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
if status.phase == "Paused" then
  return told("Suspended", "Ready")
end
if is("Delivering", "False") then
  local why = conditions.Delivering.message or ""
  return { status = "Healthy", message = "As specified, but the router does not take its wakes: " .. why }
end
return told("Healthy", "Ready")
