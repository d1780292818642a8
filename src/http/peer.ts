import { clientKey } from './clientip'

/** The other end of a request's connection; the address is looked up only when it is needed. */
export type Peer = (() => string | undefined) & {
  /**
   * Sets whether the connection may stay silent for as long as its request takes. `isCut` ends it
   * soon, even while bytes wait for a peer that does not read.
   */
  hold?: (isHeld: boolean, isCut?: boolean) => void
}

/**
 * The peer of a request to a server that ends connections after `idleSeconds` of silence. The calls
 * of one message may each hold it; it is held until the last one releases it. Release it before the
 * answer ends, because the server does not reset the timeout by itself.
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
