import { clientKey } from './clientip'

/** The other end of a request's connection; the address is looked up only when it is needed. */
export type Peer = (() => string | undefined) & {
  /**
   * Whether the connection may be silent for as long as its request takes. `isCut` ends it soon, also
   * while bytes wait for a peer that does not read them.
   */
  hold?: (isHeld: boolean, isCut?: boolean) => void
}

/**
 * The peer of a request to a server that ends connections after `idleSeconds` of silence. Held
 * several times, by the calls of one message, it is held until the last one gives it back. It must
 * be given back before the answer ends: the server forgets nothing by itself.
 */
export function createPeer(
  request: Request,
  server: Pick<Bun.Server<unknown>, 'requestIP' | 'timeout'>,
  idleSeconds: number,
): Peer {
  let holders = 0
  const peer: Peer = () => server.requestIP(request)?.address
  peer.hold = (isHeld, isCut = false) => {
    holders += isHeld ? 1 : -1
    if (holders === 1 && isHeld) server.timeout(request, 0)
    if (holders === 0) server.timeout(request, isCut ? 1 : idleSeconds)
  }
  return peer
}

/** What a peer is counted under; see `clientKey`. */
export function clientOf(peer: Peer, headers: Headers, trustProxy: number): string {
  return clientKey(peer(), headers.get('x-forwarded-for'), trustProxy)
}
