//! A payload is the agent's own: its bytes go in over HTTP, lie in Postgres, and come out in the wake unchanged.

use crate::support::{AgentKey, World};

#[tokio::test]
async fn the_bytes_of_a_payload_survive_the_whole_way() {
    // Anything that parses and prints on the way changes at least one of these.
    let payloads = [
        r#"{"z":1,"a":2,"z":3,"m":{"b":1,"a":2}}"#.to_owned(),
        r#"{"n":[1e2,1E+2,1.0,-0,-0.0,0.10,1e-7,1e400]}"#.to_owned(),
        r#"{"big":[12345678901234567890,9007199254740993,123456789012345678901234567890.5]}"#.to_owned(),
        r#"{"escaped":"\u00e9\/\u0041\b\f\u001F\ud83d\ude00","plain":"é/A😀","ключ":"é\u0301"}"#.to_owned(),
        "{ \"spaces\" :\t[ 1 ,\r\n  2 ] , \"end\" : { } }".to_owned(),
        format!("{{\"deep\":{}0{}}}", "[".repeat(63), "]".repeat(63)),
        r#""not an object at all \u2028""#.to_owned(),
        "[]".to_owned(),
    ];
    let world = World::new().await;
    let daemon = world.chronosd("api,dispatch").await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    for payload in &payloads {
        let body = format!(r#"{{"kind":"once","delay_seconds":1,"wake_message":"m","payload":{payload}}}"#);
        api.post_text("/v1/alarms", &body).await.data();
    }
    let wakes = world.sink.wakes(payloads.len()).await;
    assert_eq!(wakes.len(), payloads.len());
    let texts: Vec<&str> = wakes.iter().map(|wake| std::str::from_utf8(&wake.bytes).unwrap()).collect();
    for payload in &payloads {
        let verbatim = format!("\"payload\":{payload},\"alarm_id\":");
        assert!(texts.iter().any(|text| text.contains(&verbatim)), "{payload} is in none of {texts:#?}");
    }
}
