import { clientKey } from './client-ip'

/** Returns the address of a request's client. The address is looked up only when it is needed. */
export type Peer = (() => string | undefined) & {
  /**
   * Suspends the idle timeout of the connection (`isHeld`), or restores it. `isCut` ends the
   * connection soon, even while bytes wait for a client that does not read.
   */
  hold?: (isHeld: boolean, isCut?: boolean) => void
}

/** Access to the connections of a server's requests. */
export type Connections = {
  /** Connections are ended after this idle time, s. */
  idleSeconds: number
  addressOf(request: Request): string | undefined
  setTimeout(request: Request, seconds: number): void
}

/**
 * The peer of a request. The calls of one message may each suspend the idle timeout, which stays
 * suspended until the last call restores it. Restore it before the answer ends, because the server
 * does not reset the timeout by itself. `originalOf`: the request as the server received it.
 */
export function createPeer(
  request: Request,
  { idleSeconds, addressOf, setTimeout }: Connections,
  originalOf: (request: Request) => Request,
): Peer {
  let holders = 0
  // The lookup is lazy, because an unpaid answer does not need the address.
  const peer: Peer = () => addressOf(originalOf(request))
  peer.hold = (isHeld, isCut = false) => {
    holders += isHeld ? 1 : -1
    if (holders === 1 && isHeld) setTimeout(originalOf(request), 0)
    if (holders === 0) setTimeout(originalOf(request), isCut ? 1 : idleSeconds)
  }
  return peer
}

/** The key under which a peer is counted; see `clientKey`. */
export function clientOf(peer: Peer, headers: Headers, trustProxy: number): string {
  return clientKey(peer(), headers.get('x-forwarded-for'), trustProxy)
}
