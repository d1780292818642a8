import type { Hex, LocalAccount } from 'viem'
import type { Asked } from './buyer'
import { signInHeader } from './sign-in'

/**
 * A wallet that signs in (x402 extension `sign-in-with-x`) and sets every member of the message
 * explicitly, so that tests can send messages that no honest wallet would sign.
 */

export type SignInInfo = {
  domain: string
  uri: string
  statement?: string
  version: string
  nonce: string
  issuedAt: string
  expirationTime?: string
  notBefore?: string
  requestId?: string
  resources?: string[]
}

export type SignInOffer = {
  info: SignInInfo
  supportedChains: { chainId: string; type: string }[]
  schema: object
}

/** The members of `SIGN-IN-WITH-X` without the signature. */
export type SignInMessage = SignInInfo & { address: string; chainId: string; type: string }

/** What a 402 says of signing in; undefined when it offers none. */
export function signInOf({ required }: Pick<Asked, 'required'>): SignInOffer | undefined {
  return required.extensions?.['sign-in-with-x'] as SignInOffer | undefined
}

/** EIP-4361 text of a message, also of one with members that are not permitted. */
export function textOf(message: SignInMessage): string {
  const { domain, address, statement, uri, version, chainId, nonce, issuedAt } = message
  const lines = [
    `${domain} wants you to sign in with your Ethereum account:`,
    address,
    '',
    ...(statement === undefined ? [''] : [statement, '']),
    `URI: ${uri}`,
    `Version: ${version}`,
    `Chain ID: ${chainId.slice('eip155:'.length)}`,
    `Nonce: ${nonce}`,
    `Issued At: ${issuedAt}`,
    ...(message.expirationTime === undefined ? [] : [`Expiration Time: ${message.expirationTime}`]),
    ...(message.notBefore === undefined ? [] : [`Not Before: ${message.notBefore}`]),
    ...(message.requestId === undefined ? [] : [`Request ID: ${message.requestId}`]),
    ...(message.resources === undefined
      ? []
      : ['Resources:', ...message.resources.map((resource) => `- ${resource}`)]),
  ]
  return lines.join('\n')
}

export type SignInOptions = {
  /** Members that are signed and sent in place of the offered ones; undefined leaves one out. */
  signed?: { [K in keyof SignInMessage]?: SignInMessage[K] | undefined }
  /** Members that are replaced after the signature. */
  sent?: Readonly<Record<string, unknown>>
  /** A signature that replaces the real one. */
  signature?: (signature: Hex, message: SignInMessage) => Hex | Promise<Hex>
}

/** The header that signs in for the request of a 402. Throws when the 402 offers none. */
export async function signIn(
  asked: Pick<Asked, 'required'>,
  signer: LocalAccount,
  { signed, sent, signature }: SignInOptions = {},
): Promise<Record<string, string>> {
  const offer = signInOf(asked)
  const [first] = offer?.supportedChains ?? []
  if (offer === undefined || first === undefined) throw new Error('the 402 offers no sign-in')
  const { info } = offer
  const { address } = signer
  const message = { ...info, address, chainId: first.chainId, type: first.type, ...signed }
  const own = await signer.signMessage({ message: textOf(message as SignInMessage) })
  const last = (await signature?.(own, message as SignInMessage)) ?? own
  return signInHeader({ ...message, signature: last, ...sent })
}
