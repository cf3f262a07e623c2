-- Each new value is one request to fire. Asked twice within a second is asked once.
local os = require("os")
obj.metadata.annotations = obj.metadata.annotations or {}
obj.metadata.annotations["chronos.dev/fire-requested-at"] = os.date("!%Y-%m-%dT%XZ")
return obj
