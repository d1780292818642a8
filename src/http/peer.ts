import { clientKey } from './clientip'

/** The other end of a request's connection; the address is looked up only when it is needed. */
export type Peer = (() => string | undefined) & {
  /**
   * Sets whether the connection may stay silent for as long as its request takes. `isCut` ends it
   * soon, even while bytes wait for a peer that does not read.
   */
  hold?: (isHeld: boolean, isCut?: boolean) => void
}

/** What a server knows of the connections of its requests. */
export type Connections = {
  /** Connections are ended after this time of silence. */
  idleSeconds: number
  addressOf(request: Request): string | undefined
  setTimeout(request: Request, seconds: number): void
}

/**
 * The peer of a request. The calls of one message may each hold it; it is held until the last one
 * releases it. Release it before the answer ends, because the server does not reset the timeout by
 * itself. `originalOf`: the request that the server knows.
 */
export function createPeer(
  request: Request,
  { idleSeconds, addressOf, setTimeout }: Connections,
  originalOf: (request: Request) => Request,
): Peer {
  let holders = 0
  // Nothing is looked up before it is needed: an unpaid answer needs nothing.
  const peer: Peer = () => addressOf(originalOf(request))
  peer.hold = (isHeld, isCut = false) => {
    holders += isHeld ? 1 : -1
    if (holders === 1 && isHeld) setTimeout(originalOf(request), 0)
    if (holders === 0) setTimeout(originalOf(request), isCut ? 1 : idleSeconds)
  }
  return peer
}

/** What a peer is counted under; see `clientKey`. */
export function clientOf(peer: Peer, headers: Headers, trustProxy: number): string {
  return clientKey(peer(), headers.get('x-forwarded-for'), trustProxy)
}
