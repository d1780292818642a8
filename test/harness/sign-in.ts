import {
  type CompleteSIWxInfo,
  createSIWxPayload,
  type EVMSigner,
  encodeSIWxHeader,
  type SIWxPayload,
} from '@x402/extensions/sign-in-with-x'
import type { Address } from 'viem'
import { account } from '../../src/demo/accounts'
import type * as Network from '../../src/protocol/Network'
import { ask } from './buyer'

/** The `sign-in-with-x` extension of a 402. */
export type SignInExtension = {
  info: CompleteSIWxInfo & { nonce: string; issuedAt: string }
  supportedChains: { chainId: Network.Id; type: 'eip191' }[]
}

export type SignInOptions = {
  /** The request for the challenge, which the sign-in is for. */
  init?: RequestInit | undefined
  /** Account 1 by default. */
  signer?: EVMSigner
  /** The first chain of the challenge by default. */
  network?: Network.Id
}

/** Gets a challenge and signs it as the reference client does: what its header has. */
export async function signedIn(url: string, options: SignInOptions = {}): Promise<SIWxPayload> {
  const { required } = await ask(url, options.init)
  return signChallenge(required, options)
}

/** Signs the challenge of a parsed `PAYMENT-REQUIRED`. */
export function signChallenge(
  { resource, extensions }: { resource: { url: string }; extensions: object },
  { signer = account(1).local(), network }: Omit<SignInOptions, 'init'> = {},
): Promise<SIWxPayload> {
  const { 'sign-in-with-x': extension } = extensions as { 'sign-in-with-x'?: SignInExtension }
  const [first] = extension?.supportedChains ?? []
  if (extension === undefined || first === undefined) throw new Error('no sign-in is offered')
  const chosen = { chainId: network ?? first.chainId, type: first.type }
  return createSIWxPayload({ ...extension.info, ...chosen }, signer, resource.url)
}

/** The header of a payload, which a test may have changed. */
export function signInHeader(payload: object): Record<string, string> {
  return { 'sign-in-with-x': encodeSIWxHeader(payload as SIWxPayload) }
}

/** A contract wallet whose owner signs. */
export function walletOf(address: Address, owner = account(1)): EVMSigner {
  return { address, signMessage: ({ message }) => owner.local().signMessage({ message }) }
}
