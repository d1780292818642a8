import type * as Network from '../../protocol/Network'
import { problemOf } from './outcome'
import * as SignIn from './SignIn'

/** A request that a wallet may have without a payment: it was paid for before, by a pass, or a trial. */

type Request = {
  url: URL
  privateKey: Uint8Array
  /** The network that is signed for first; undefined: in the order of the server. */
  network: string | undefined
  /** Sends the request with these headers. */
  send: (headers: Readonly<Record<string, string>>) => Promise<Response>
}

type Used =
  /** The answer to a sign-in that was no 402. */
  | { kind: 'answered'; response: Response }
  /** The last 402, whose offers can be paid, and why the wallet has nothing; undefined: not offered. */
  | { kind: 'unpaid'; response: Response; why: string | undefined }

/**
 * Signs in where the 402 offers it. The balance that a trial needs may be on another network, so that
 * each is tried.
 */
export async function useEntitlement(asked: Response, request: Request): Promise<Used> {
  const { url, privateKey, network, send } = request
  const tried = new Set<Network.Id>()
  let used: Used & { kind: 'unpaid' } = { kind: 'unpaid', response: asked, why: undefined }
  for (;;) {
    const offered = SignIn.read(used.response.headers, url)
    if (offered === undefined) return used
    if ('fault' in offered) return { ...used, why: offered.fault }
    const left = offered.networks.filter((id) => !tried.has(id))
    const next = left.find((id) => id === network) ?? left[0]
    // A server that names others each time gets no more signatures.
    if (next === undefined || tried.size >= SignIn.networksMax) return used
    tried.add(next)
    const signed = SignIn.sign(offered.info, next, privateKey)
    await used.response.body?.cancel()
    const response = await send({ [SignIn.header]: signed })
    if (response.status !== 402) return { kind: 'answered', response }
    // Offers and problem are read from the same body.
    const { code, reason = code } = await problemOf(response.clone())
    used = { kind: 'unpaid', response, why: reason }
    if (!reason.startsWith('trial_balance')) return used
  }
}
