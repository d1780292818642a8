import type { EventText } from './EventText'

/** Events of `serve --domain`. */
export const certificateEvents = {
  'certificate-issued': {
    level: 'info',
    meaning: 'A certificate was issued: its `domains`, its end, and when it is renewed.',
  },
  'certificate-failed': {
    level: 'error',
    meaning: 'An order of a certificate failed. The present one is served as long as it is valid.',
    action:
      '`reason` is that of the CA or the network. Compare with docs/deploy.md, "HTTPS by itself". ' +
      'The next attempt is in `retryInSeconds`.',
  },
  'certificate-unreadable': {
    level: 'warn',
    meaning: 'A stored certificate or key was damaged, and is replaced.',
    action: 'Check the disk if it repeats.',
  },
  'certificate-unsaved': {
    level: 'error',
    meaning: 'The certificate is served and could not be stored. Each minute tries again.',
    action: 'Make the data directory writable, or free the disk.',
  },
  'certificate-unserved': {
    level: 'error',
    meaning: 'The port of HTTPS could not be opened. Each minute tries again.',
    action: 'End the program that has the port.',
  },
} as const satisfies Readonly<Record<string, EventText>>
