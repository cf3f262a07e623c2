-- Which buttons an Alarm has now. One that is over, paused or being deleted has nothing to fire.
local leaving = obj.metadata.deletionTimestamp ~= nil
local suspended = obj.spec.suspend == true
local active = obj.status ~= nil and obj.status.phase == "Active"
return {
  fire = { disabled = leaving or not active, displayName = "Fire now", iconClass = "fa fa-fw fa-bell" },
  suspend = { disabled = leaving or suspended, iconClass = "fa fa-fw fa-pause" },
  resume = { disabled = leaving or not suspended, iconClass = "fa fa-fw fa-play" },
}
