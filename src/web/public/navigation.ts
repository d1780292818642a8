import { extract } from '../../paywall/extract'

/**
 * Whether a browser opens the address for a person to read. A program drives a browser that presents a
 * payment; it paid for the answer as it is.
 */
export function isNavigation({ method, headers }: Request): boolean {
  return (
    headers.get('sec-fetch-mode') === 'navigate' &&
    method === 'GET' &&
    headers.get('accept')?.includes('text/html') === true &&
    extract(headers).kind === 'none'
  )
}
