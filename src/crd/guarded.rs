use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::object::HasStatus};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::{Value, value::RawValue};

/// An object of the API server, or why it cannot be read. One that was stored under another definition would otherwise stop the list,
/// and so the watch, for all the others. What every object has is known in any case: who it is, and whether it is being deleted.
///
/// kube's own guard reads objects into values first, in which raw text ([`super::alarm::RawJson`]) does not survive.
#[derive(Clone, Debug)]
pub struct Guarded<K> {
    meta: ObjectMeta,
    pub read: Result<K, Unreadable>,
}

/// Why an object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub why: String,
    status: Value,
}

impl<K: HasStatus> Guarded<K>
where
    K::Status: Clone + DeserializeOwned,
{
    /// What its status says, also of one that cannot be read.
    pub fn status(&self) -> Option<K::Status> {
        match &self.read {
            Ok(object) => object.status().cloned(),
            Err(unreadable) => serde_json::from_value(unreadable.status.clone()).ok(),
        }
    }
}

impl<'de, K: Resource + DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Any {
            #[serde(default)]
            metadata: ObjectMeta,
            #[serde(default)]
            status: Value,
        }

        let raw = <Box<RawValue>>::deserialize(deserializer)?;
        let (mut meta, mut read) = match serde_json::from_str::<K>(raw.get()) {
            Ok(object) => (object.meta().clone(), Ok(object)),
            Err(error) => {
                // Without that much it is no object at all.
                let Any { metadata, status } = serde_json::from_str(raw.get()).map_err(D::Error::custom)?;
                (metadata, Err(Unreadable { why: error.to_string(), status }))
            }
        };
        // Who set which field is of no use here, and half of what an object weighs.
        meta.managed_fields = None;
        if let Ok(object) = &mut read {
            object.meta_mut().managed_fields = None;
        }
        Ok(Self { meta, read })
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;

    use super::*;
    use crate::crd::Alarm;

    #[test]
    fn an_object_that_cannot_be_read_keeps_its_name_and_stops_nobody_else() {
        let list = r#"[
            {"metadata": {"name": "odd", "uid": "u", "managedFields": []}, "spec": {"owner": 7}, "status": {"failureCount": 3}},
            {"metadata": {"name": "even"}, "spec": {"owner": "o", "wakeMessage": "m", "payload": {"a": 1.50}}}
        ]"#;
        let read: Vec<Guarded<Alarm>> = serde_json::from_str(list).unwrap();
        assert_eq!((read[0].name_any().as_str(), read[0].uid().as_deref()), ("odd", Some("u")));
        let why = &read[0].read.as_ref().unwrap_err().why;
        assert!(why.contains("invalid type: integer `7`, expected a string"), "{why}");
        assert_eq!(read[0].status().map(|status| status.failure_count), Some(3));
        let even = read[1].read.as_ref().unwrap();
        assert_eq!(even.spec.payload.as_ref().unwrap().get(), r#"{"a": 1.50}"#);
        assert!(serde_json::from_str::<Guarded<Alarm>>("7").is_err());
    }
}
