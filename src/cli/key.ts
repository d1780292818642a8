import * as Crypto from '../protocol/Crypto'

/** A text that is not a private key. The message is for the user and does not contain the text. */
export class KeyError extends Error {
  override readonly name = 'KeyError'
}

/** The 32 bytes of a private key in hex, with or without 0x. Throws a KeyError. */
export function readKey(hex: string): Uint8Array {
  if (!/^(0x)?[0-9a-fA-F]{64}$/.test(hex)) throw new KeyError('The key is not 32 bytes of hex.')
  const bytes = Uint8Array.fromHex(hex.replace(/^0x/, ''))
  try {
    Crypto.addressOf(bytes)
    return bytes
  } catch {
    throw new KeyError('The key is not valid.')
  }
}
