-- A transaction is written as sent, because it leaves as soon as it is on the disk. One that an older
-- program signed and did not send is sent by the recovery.
UPDATE `transactions` SET `state` = 'sent', `first_sent_at` = `created_at` WHERE `state` = 'signed';
