import type { Address } from 'viem'
import { RpcFault } from '../../chain/client'
import type * as Network from '../../protocol/Network'
import * as Problem from '../../protocol/Problem'
import * as SignIn from '../../protocol/SignIn'
import type { Settlement } from '../../settlement/settlement'
import { type CredentialOptions, fingerprint } from '../credential'
import type { GatewaySale } from '../GatewaySale'

type Options = Pick<CredentialOptions, 'challengeSecrets' | 'now'> & {
  settlement: Pick<Settlement, 'acceptsSignature'>
}

export type SignedIn = {
  wallet: Address
  /** The only chain whose entitlements count, because only a contract there accepted the signature. */
  network: Network.Id | undefined
  /** The chain that the sign-in names. */
  chain: Network.Id
  /** Of this request alone, and to be used once. */
  nonce: string
}

/**
 * The wallet that signed in for a request. Throws ProblemError: 400 for a malformed header, 402 for a
 * sign-in that is not for this request or not by the wallet, 503 when no node could be asked.
 */
export async function signIn(sale: GatewaySale, options: Options): Promise<SignedIn> {
  const { item, presented, url, method, path, search, digest } = sale
  const { challengeSecrets: secrets, now } = options
  if (presented.kind !== 'sign-in' || item.signIn === undefined) throw new Error('no sign-in')
  const parsed = SignIn.parse(presented.value)
  if (Problem.isFault(parsed))
    throw Problem.ofFault(parsed, 'bad-request', { members: { field: 'SIGN-IN-WITH-X' } })
  const { host } = new URL(item.resource.url)
  const network = item.offers.find((offer) => offer.network.id === parsed.chainId)?.network.id
  const fault = SignIn.check(parsed, {
    domain: host,
    uris: [url, item.resource.url],
    chains: item.offers.map((offer) => offer.network.id),
    fingerprint: fingerprint(method, path, search, { digest }),
    terms: item.signIn,
    secrets,
    now: now(),
  })
  if (fault !== undefined || network === undefined) throw refused(fault ?? SignIn.unsigned(parsed))
  const { address: wallet, nonce } = parsed
  if (SignIn.isKeySigned(parsed)) return { wallet, network: undefined, chain: network, nonce }
  // Costs a call of a node, so it counts as refused unless the wallet has something here.
  presented.isUnentitled = false
  if (!(await isAccepted(options, network, parsed))) throw refused(SignIn.unsigned(parsed))
  return { wallet, network, chain: network, nonce }
}

async function isAccepted(
  { settlement }: Options,
  network: Network.Id,
  signed: SignIn.SignIn,
): Promise<boolean> {
  const { address: wallet, signature } = signed
  try {
    const digest = SignIn.digest(signed)
    return await settlement.acceptsSignature(network, { wallet, digest, signature })
  } catch (error) {
    if (!(error instanceof RpcFault)) throw error
    const detail = `No node of ${network} can check the signature now: send the same request again.`
    throw Problem.of('not-ready', detail, { cause: error, headers: { 'retry-after': '5' } })
  }
}

/** 402 for a sign-in that may be used by no request, or by no other one. */
export function refused(fault: Problem.Fault): Problem.ProblemError {
  return Problem.ofFault(fault, 'sign-in-refused')
}
