-- When the tables were last cleaned, and how much is in them.
SELECT CASE WHEN cleaned_at <= {now} - $pause OR cleaned_at > {now} THEN 1 ELSE 0 END,
    (SELECT COUNT(*) FROM dlock_lock) + (SELECT COUNT(*) FROM dlock_reader)
        + (SELECT COUNT(*) FROM dlock_queue) + (SELECT COUNT(*) FROM dlock_process)
    FROM dlock_meta
