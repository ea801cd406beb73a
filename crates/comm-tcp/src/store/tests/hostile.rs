//! Clients that send altered, repeated and reordered requests in pieces, beside an honest one.

use std::io::ErrorKind;

use comm_core::Error;
use comm_sim::hostile::Input;

use super::*;

/// Less than the values of all requests together.
const STORED_BYTES_MAX: usize = 40 << 10;
const FRAME_BYTES_MAX: usize = 48 << 10;

fn requests() -> Vec<Vec<u8>> {
    let (value, long) = (vec![7; 20 << 10], Duration::MAX);
    let many: Vec<&str> = vec!["b"; 300];
    let requests = [
        Request::Set { key: "a", value: b"1" },
        Request::Add { key: "n", amount: i64::MAX },
        Request::Get { key: "a", timeout: Duration::ZERO },
        Request::CompareSet { key: "a", expected: b"1", desired: &value },
        Request::LeaveWill { condition: ("a", b"1"), value: b"left", keys: vec!["b", "c"] },
        Request::Check { keys: vec!["a", "b"] },
        Request::Set { key: "b", value: &value },
        Request::Wait { keys: many, timeout: Duration::ZERO },
        Request::Delete { key: "a" },
        Request::NumKeys,
        Request::Identify,
        Request::Get { key: "c", timeout: long },
    ];
    requests.iter().map(|request| request.encode().unwrap()).collect()
}

/// A hostile client, with all that it has received.
struct Hostile {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Hostile {
    fn connect(server: &TcpStoreServer) -> Self {
        let stream = raw(server.local_addr());
        stream.set_nonblocking(true).unwrap();
        Self { stream, received: Vec::new() }
    }

    /// Sends a piece, unless the server does not read or has closed the connection.
    fn send(&mut self, piece: &[u8]) -> bool {
        self.stream.write_all(piece).is_ok()
    }

    fn receive(&mut self) {
        match self.stream.read_to_end(&mut self.received) {
            Ok(_) => {}
            Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionReset)),
        }
    }

    /// Checks that the server has sent nothing but responses.
    fn check(mut self) {
        self.receive();
        let mut rest = &self.received[..];
        while let Some((length, more)) = rest.split_first_chunk::<4>() {
            let Some(body) = more.get(..u32::from_le_bytes(*length) as usize) else { return };
            Response::decode(body).unwrap();
            rest = &more[body.len()..];
        }
    }
}

/// An honest client uses a key of its own.
fn use_honestly(store: &TcpStore) {
    match store.set("honest", b"value") {
        Ok(()) => assert_eq!(store.get("honest", SOON).unwrap(), b"value"),
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::QuotaExceeded => {}
        Err(error) => panic!("{error}"),
    }
    assert!(store.delete("honest").is_ok() && store.num_keys().is_ok());
}

fn attack(input: &mut Input) {
    let config = StoreConfig {
        stored_bytes_max: STORED_BYTES_MAX,
        frame_bytes_max: FRAME_BYTES_MAX,
        ..StoreConfig::default()
    };
    let (server, store) = serve(config);
    let valid = requests();
    let mut clients = Vec::new();
    for _ in 0..=input.below(3) {
        let mut client = Hostile::connect(&server);
        let sent = input.stream(&valid).concat();
        for piece in input.cut(&sent) {
            if !client.send(piece) {
                break;
            }
            if input.one_in(3) {
                client.receive();
            }
            let held = server.held_bytes();
            assert!(held <= STORED_BYTES_MAX, "{held} bytes are held");
        }
        clients.push(client);
        use_honestly(&store);
        if input.one_in(3) {
            clients.remove(0).check();
        }
    }
    clients.into_iter().for_each(Hostile::check);
    // The server executes the wills of the clients before it serves this.
    use_honestly(&store);
}

comm_sim::hostile_input!(hostile_clients_do_not_affect_an_honest_one: 500, attack);
